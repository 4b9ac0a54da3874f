"""What clients asked for: how often by API, and how long an answer took. Plain numbers for metrics to read.

Every request is counted. The time is taken of one request of an API at once, and at most a hundred times a
second: reading the clock for each would cost more than the rest of this. It runs from the turn that read the
request to the end of the turn that had its answer.
"""

from __future__ import annotations

import time

from millrace.handlers.request import Request
from millrace.histogram import Histogram

TIMED_EVERY_S = 0.01
MAX_APIS = 100
"""Kafka has fewer. A client that makes up numbers is counted under -1."""
OTHER = -1


class ApiStatistics:
    """One API's numbers."""

    __slots__ = ("latency", "requests", "since", "timed", "timed_at")

    def __init__(self) -> None:
        self.requests = 0
        self.latency = Histogram()
        self.timed: Request | None = None
        self.since = 0.0
        self.timed_at = 0.0


class Statistics:
    """Every API's numbers, by its key; written by the loop only."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiStatistics] = {OTHER: ApiStatistics()}
        self._timing: list[ApiStatistics] = []

    def served(self, request: Request, now: float) -> None:
        """A request was handed over, in the turn that began `now`."""
        api = self.apis.get(request.api_key) or self._new(request.api_key)
        api.requests += request.count
        if api.timed is None and api.timed_at <= now:
            api.timed, api.since = request, now
            self._timing.append(api)

    def _new(self, api_key: int) -> ApiStatistics:
        if len(self.apis) >= MAX_APIS:
            return self.apis[OTHER]
        return self.apis.setdefault(api_key, ApiStatistics())

    def end_turn(self) -> None:
        """Note the time of those that have their answer now."""
        if not self._timing:
            return
        now = time.monotonic()
        for api in self._timing:
            assert api.timed is not None
            answered = api.timed.parts is not None
            if answered:
                api.latency.observe(now - api.since)
            if answered or api.timed.client.closed:
                api.timed, api.timed_at = None, now + TIMED_EVERY_S
        self._timing = [api for api in self._timing if api.timed is not None]
