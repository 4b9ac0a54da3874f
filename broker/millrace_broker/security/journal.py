"""The journal of rights: refusals and changes with their principals, a line of JSON each.

Logger `millrace.security`. A repeated refusal is counted, and logged again after REPEAT_S with its count. All
changes are logged, with every changed resource.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

logger = logging.getLogger("millrace.security")
REPEAT_S = 10.0
"""Seconds after which the same refusal is logged again. The log's filter bounds the number of all lines."""
MAX_KINDS = 10_000
MAX_NAMED = 10
"""Most resources in one line of a refusal; further resources are only counted."""
MAX_CHARACTERS = 300
"""Most characters of a resource's name and of a `client.id`."""


class Requester(NamedTuple):
    """The client of a request, and the request's API."""

    principal: str
    address: str
    listener: str
    api: str
    client_id: str


class Journal:
    """Logs refusals and changes of one broker. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.refusals: Counter[str] = Counter()
        """Number of refusals by API."""
        self._refusals: dict[tuple[str, str, str, str], tuple[float, int]] = {}
        """Refusal -> time at which it is logged next, and number of repetitions since it was last logged."""
        self._lock = threading.Lock()

    def refused(self, requester: Requester, operation: str, resources: Sequence[str]) -> None:
        first = resources[0][:MAX_CHARACTERS]  # a client may send names of any length
        now, kind = self._clock(), (requester.principal, requester.api, operation, first)
        with self._lock:
            self.refusals[requester.api] += 1
            if len(self._refusals) >= MAX_KINDS:
                self._refusals.clear()
            due, unlogged = self._refusals.get(kind, (now, 0))
            if now < due:
                self._refusals[kind] = due, unlogged + 1
                return
            self._refusals[kind] = now + REPEAT_S, 0
        # The log's filter takes the text before the line as the kind of the message.
        logger.warning("refused: %s", _line("refused", requester, operation, resources, repeated=unlogged))

    def allowed(self, requester: Requester, operation: str, resources: Sequence[str]) -> None:
        """Log that a client requests a change to which it has the right. The change may still fail."""
        line = _line("allowed", requester, operation, resources, named=len(resources))
        logger.info("allowed: %s", line, extra={"always": True})

    def changed(self, requester: Requester, change: str) -> None:
        logger.info("changed: %s", _line("changed", requester, change, ()), extra={"always": True})


def _line(
    what: str,
    requester: Requester,
    operation: str,
    resources: Sequence[str],
    *,
    named: int = MAX_NAMED,
    repeated: int = 0,
) -> str:
    line: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what}
    line |= requester._asdict() | {"client_id": requester.client_id[:MAX_CHARACTERS], "operation": operation}
    if resources:
        line["resources"] = [name[:MAX_CHARACTERS] for name in resources[:named]]
    if len(resources) > named:
        line["more_resources"] = len(resources) - named
    if repeated:
        line["not_told_before"] = repeated
    return json.dumps(line)  # escapes every character that is not plain
