"""State of each partition's mirror, for people: `millrace mirror status`, the log, metrics.

Pulling threads write states; the event loop writes counts and latencies; any thread may read them. No
decision depends on them: after a restart the broker finds the stopped mirrors again, from the origin and the
recorded position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.client.runs import Run
from millrace.records.mirror_position import Origin
from millrace_broker.histogram import Histogram

logger = logging.getLogger("millrace.mirror.states")
_SHORT_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
LATENCIES_S = (*_SHORT_S, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0)
"""Upper bounds of the latency histogram: from two flushes of 100 ms to an outage of a day."""


OLD_S = 60.0
"""Age of a message from which on it may have been at the origin before the mirror began."""


class State(StrEnum):
    """State of a partition's mirror."""

    RUNNING = "running"
    WAITING = "waiting"
    """A cluster is unreachable or data is damaged. The mirror retries, and continues by itself."""
    STOPPED = "stopped"
    """The origin's log does not continue at the position. The mirror continues after `mirror reset`, or once
    the log does."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """State of one origin partition's mirror. `detail` is the reason while it is not running."""

    origin: Origin
    state: State
    detail: str = ""
    high_watermark: int = -1
    """The origin's high watermark as last seen; -1: not seen yet."""

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else str(self.state)


class Copied:
    """Totals of the visible data that was copied from one origin; counted by the event loop."""

    def __init__(self) -> None:
        self.batches = self.records = self.bytes = 0
        self.latency = Histogram(LATENCIES_S)
        """Latency of each append, as `MirrorStates.when_visible` defines it."""


class MirrorStates:
    """The state of every partition that this broker pulls, by (topic, target partition)."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[tuple[str, int], MirrorState] = {}
        self._latency_ms: dict[tuple[str, int], int] = {}
        self.copied: dict[str, Copied] = {}
        """Origin cluster -> totals."""

    def latency_ms(self, topic: str, partition: int) -> int | None:
        """Return the latency of the last append to a target partition; None when nothing was appended."""
        return self._latency_ms.get((topic, partition))

    def when_visible(
        self, origin: Origin, target: int, run: Run, caught_up_ms: int | None, *, is_first_copy: bool
    ) -> Callable[[], None]:
        """Return the function to call, on the event loop, when consumers see the run.

        Its latency begins with the timestamp of the first batch. Timestamps of old events say nothing about
        the mirror: at `caught_up_ms` the origin had none of the run's records, so the latency begins no
        earlier. A first copy has no latency while its messages are old.
        """
        cluster, topic, partition = origin.cluster, origin.topic, target
        batches, size = len(run.batches), sum(map(len, run.batches))  # counted now: their buffer is reused
        records, oldest_ms = run.records, run.oldest_ms

        def visible() -> None:
            copied = self.copied.setdefault(cluster, Copied())
            copied.batches += batches
            copied.records += records
            copied.bytes += size
            if oldest_ms is not None:
                since_ms = oldest_ms if caught_up_ms is None else max(oldest_ms, caught_up_ms)
                late = max(0.0, self._clock() - since_ms / 1000)
                if is_first_copy and late > OLD_S:
                    return
                copied.latency.observe(late)
                self._latency_ms[topic, partition] = int(late * 1000)

        return visible

    def get(self, topic: str, partition: int) -> MirrorState | None:
        """Return the state of a target partition; None when this broker does not pull it."""
        return self._states.get((topic, partition))

    def all(self) -> Mapping[tuple[str, int], MirrorState]:
        with self._lock:
            return dict(self._states)

    def put(self, topic: str, partition: int, state: MirrorState, *, quiet: bool = False) -> None:
        """Remember a state and log it when it has changed, unless `quiet`."""
        with self._lock:
            before = self._states.get((topic, partition))
            self._states[topic, partition] = state
        if quiet:
            return
        if before is not None and str(before) == str(state) and before.origin == state.origin:
            return
        origin = state.origin
        what = f"mirror of {origin.cluster} {origin.topic}-{origin.partition} into {topic}-{partition}"
        if state.state is State.STOPPED:
            logger.error("%s %s", what, state)
        elif state.state is State.WAITING:
            logger.warning("%s %s", what, state)
        else:
            logger.info("%s %s", what, state)

    def forget(self, topic: str, partition: int) -> None:
        with self._lock:
            self._states.pop((topic, partition), None)
            self._latency_ms.pop((topic, partition), None)
