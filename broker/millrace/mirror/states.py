"""What the mirror of each partition is doing, for people: `millrace mirror status`, the log, metrics.

Written by the pulling threads, read by any thread. Nothing depends on it: a broker that starts anew finds
out again what is stopped, because the reason lies in the origin and in the recorded position.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.storage.position import Origin

log = logging.getLogger(__name__)


class State(StrEnum):
    """What a partition's mirror is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    """Something is unreachable or damaged: tried again and again, goes on by itself."""
    STOPPED = "stopped"
    """The origin no longer fits the position: goes on only after `millrace mirror reset`."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """One origin partition as its puller sees it; `detail` says why when it is not running."""

    origin: Origin
    state: State
    detail: str = ""
    high_watermark: int = -1
    """Of the origin, as last seen; -1: not seen yet."""

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else str(self.state)


class MirrorStates:
    """The state of every partition this broker pulls, by (topic, target partition)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[tuple[str, int], MirrorState] = {}

    def get(self, topic: str, partition: int) -> MirrorState | None:
        """The state of a target partition; None when this broker does not pull it."""
        return self._states.get((topic, partition))

    def all(self) -> Mapping[tuple[str, int], MirrorState]:
        """Every state, as of now."""
        with self._lock:
            return dict(self._states)

    def put(self, topic: str, partition: int, state: MirrorState, *, quiet: bool = False) -> None:
        """Remember a state and log it when it is another than before, unless `quiet`."""
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
            log.error("%s %s; to go on: millrace mirror reset", what, state)
        elif state.state is State.WAITING:
            log.warning("%s %s", what, state)
        else:
            log.info("%s %s", what, state)

    def forget(self, topic: str, partition: int) -> None:
        """This broker no longer pulls the partition."""
        with self._lock:
            self._states.pop((topic, partition), None)
