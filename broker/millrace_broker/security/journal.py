"""What is written down of rights: who was refused what, and who changed what, a line of JSON each.

Logger `millrace.security`. A refusal that is repeated is counted, and told again after REPEAT_S with its
count. Changes are all told, with all that they are about. Knows no requests.
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

log = logging.getLogger("millrace.security")
REPEAT_S = 10.0
"""How soon the same refusal is told again; the command line's own filter bounds all of them together."""
MAX_KINDS = 10_000
MAX_NAMED = 10
"""Resources in one line of what is refused; the others are counted."""
MAX_CHARACTERS = 300
"""Of what a client calls itself."""


class Asker(NamedTuple):
    """Who asks for what, and from where."""

    principal: str
    address: str
    listener: str
    api: str
    client_id: str


class Journal:
    """Writes the lines of one broker. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.refusals: Counter[str] = Counter()
        """How often a right was refused, by API."""
        self._refusals: dict[tuple[str, str, str, str], tuple[float, int]] = {}
        """What was refused -> when it is told again, and how often it was not told."""
        self._lock = threading.Lock()

    def refused(self, asker: Asker, operation: str, resources: Sequence[str]) -> None:
        first = resources[0][:MAX_CHARACTERS]  # names are as long as a client likes
        now, kind = self._clock(), (asker.principal, asker.api, operation, first)
        with self._lock:
            self.refusals[asker.api] += 1
            if len(self._refusals) >= MAX_KINDS:
                self._refusals.clear()
            due, untold = self._refusals.get(kind, (now, 0))
            if now < due:
                self._refusals[kind] = due, untold + 1
                return
            self._refusals[kind] = now + REPEAT_S, 0
        # The text before the line is what the log's filter takes as its kind.
        log.warning("refused: %s", _line("refused", asker, operation, resources, repeated=untold))

    def allowed(self, asker: Asker, operation: str, resources: Sequence[str]) -> None:
        """A client that has the right to it asks for a change; whether it can be made is another matter."""
        line = _line("allowed", asker, operation, resources, named=len(resources))
        log.info("allowed: %s", line, extra={"always": True})

    def changed(self, asker: Asker, change: str) -> None:
        log.info("changed: %s", _line("changed", asker, change, ()), extra={"always": True})


def _line(
    what: str,
    asker: Asker,
    operation: str,
    resources: Sequence[str],
    *,
    named: int = MAX_NAMED,
    repeated: int = 0,
) -> str:
    line: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what}
    line |= asker._asdict() | {"client_id": asker.client_id[:MAX_CHARACTERS], "operation": operation}
    if resources:
        line["resources"] = [name[:MAX_CHARACTERS] for name in resources[:named]]
    if len(resources) > named:
        line["more_resources"] = len(resources) - named
    if repeated:
        line["not_told_before"] = repeated
    return json.dumps(line)  # which escapes whatever is no plain character
