"""The registry's metrics for Prometheus: answered requests, and counts of the database's rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.service.exposition import EscapingRegistry
from millrace_registry.store import Store

MEDIA_TYPE = "text/plain; version=0.0.4"
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Numbers:
    """All metrics of one registry process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registry = EscapingRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "millrace_registry_requests",
            "Requests answered, by method, route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "millrace_registry_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("method",),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._store.read() as rows:
            held = rows.counts()
        for name, what in (
            ("schemas", "Schemas that have an id."),
            ("subjects", "Subjects with a live version."),
            ("versions", "Live versions of all subjects."),
        ):
            yield GaugeMetricFamily(f"millrace_registry_{name}", what, held[name])


class Counted:
    """Middleware that counts and times every request of an application."""

    def __init__(self, app: ASGIApp, numbers: Numbers) -> None:
        self._app, self._numbers = app, numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            # The route's pattern, not the path: clients must not be able to create time series.
            route: Any = scope.get("route")
            path = "unknown" if route is None else route.path
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._numbers.requests.labels(method, path, status).inc()
            self._numbers.seconds.labels(method).observe(time.perf_counter() - began)
        return None


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
