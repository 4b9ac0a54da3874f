"""A broker's numbers and health over HTTP: `/metrics` for Prometheus, `/healthz` for a supervisor.

The numbers are plain integers where the work is done; they are read when Prometheus asks, in its thread, so
that the loop does not notice. Owns names and units. Answers to anybody, or to who shows a token of a file
with the role `metrics`; health is open, and tells a stranger only whether it is well.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from millrace.broker.broker import Broker
from millrace.errors import MillraceError
from millrace.metrics import health
from millrace.metrics.numbers import Numbers
from millrace.service.access import AccessList, NotKnown

__all__ = ["MetricsServer"]

MAX_REQUESTS = 8
"""Most requests that are answered at once; the connection of one more is closed."""
REQUEST_TIMEOUT_S = 10
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a line for every scrape says nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a client that went away or said nothing for 10 s is no event."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Serves in threads of its own from `start` to `close`."""

    def __init__(self, host: str, port: int, numbers: Numbers, access: AccessList | None = None) -> None:
        self._offsets = numbers.offsets
        registry = CollectorRegistry(auto_describe=False)
        registry.register(numbers)
        ProcessCollector(registry=registry)
        server_class = _Server6 if ":" in host else _Server
        try:
            routes = _routes(registry, numbers.broker, access)
            self._http = make_server(host, port, routes, server_class, _Handler)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise MillraceError(
                f"cannot listen on {host}:{port}: {reason}; set another `metrics_listen`"
            ) from error
        self.address = f"{host}:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._offsets.start()
        self._thread.start()

    def close(self) -> None:
        self._offsets.stop()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _routes(registry: CollectorRegistry, broker: Broker, access: AccessList | None) -> Wsgi:
    metrics = make_wsgi_app(registry)
    one_at_a_time = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        refusal = _refusal(access, environ.get("HTTP_AUTHORIZATION"))
        if path == "/metrics" and refusal:
            headers = [("Content-Type", "application/json"), ("WWW-Authenticate", 'Basic realm="millrace"')]
            start_response("401 Unauthorized", headers)
            return [json.dumps({"error": refusal}).encode() + b"\n"]
        if path == "/metrics":
            with one_at_a_time:
                return metrics(environ, start_response)  # type: ignore[no-any-return]
        json_header = [("Content-Type", "application/json")]
        if path == "/healthz":
            problems = health.problems(broker)
            start_response("503 Service Unavailable" if problems else "200 OK", json_header)
            told = {"healthy": not problems} | ({} if refusal else {"problems": problems})
            return [json.dumps(told).encode() + b"\n"]
        start_response("404 Not Found", json_header)
        return [b'{"paths": ["/metrics", "/healthz"]}\n']

    return answer


def _refusal(access: AccessList | None, authorization: str | None) -> str:
    """Why the numbers are not for who sends this header; empty when they are."""
    if access is None:
        return ""
    try:
        name = access.name_of(authorization)
    except NotKnown as error:
        return str(error)
    return "" if access.allows(name, "metrics") else f"{name} lacks the role metrics"
