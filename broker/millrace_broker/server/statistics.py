"""Statistics of clients' requests, for metrics to read: counts by API and version, and times to the answer.

Every request is counted. One request of an API at a time is timed, and at most a hundred in a second: reading
the clock for each would cost more than the rest of this file. The time runs from the turn that read the
request to the end of the turn that had its answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from millrace.wire.messages import ApiKey
from millrace_broker.histogram import Histogram
from millrace_broker.server.request import OTHER_API, Request

TIMED_EVERY_S = 0.01
MAX_VERSION = 30
"""Highest version that is counted separately, so that clients cannot create any number of series."""


@dataclass(slots=True)
class ApiStatistics:
    """The numbers of one API."""

    requests: list[int] = field(default_factory=lambda: [0] * (MAX_VERSION + 2))
    """Number of requests by version; the last number counts all higher versions."""
    latency: Histogram = field(default_factory=Histogram)
    timed: Request | None = None
    since: float = 0.0
    timed_at: float = 0.0


class Statistics:
    """The numbers of every API, by its key; written by the loop only."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiStatistics] = {key: ApiStatistics() for key in (OTHER_API, *map(int, ApiKey))}
        self._timing: list[ApiStatistics] = []

    def served(self, request: Request, now: float) -> None:
        """Count a request that was handed over in the turn that began at `now`."""
        api = self.apis.get(request.api_key) or self.apis[OTHER_API]
        api.requests[request.api_version if 0 <= request.api_version <= MAX_VERSION else -1] += request.count
        if api.timed is None and api.timed_at <= now:
            api.timed, api.since = request, now
            self._timing.append(api)

    def end_turn(self) -> None:
        """Note the time of the timed requests that have been answered."""
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
