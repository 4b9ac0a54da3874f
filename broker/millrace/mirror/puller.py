"""One thread that copies one topic of one origin cluster into the partitions this broker leads.

A round: fetch what is new from every origin partition at once, check that the origin is still the same topic,
append each partition's run, wait for the appends. The position is read before every round from the target's
log, so whoever else appended or reset in the meantime is taken into account; the append itself compares.

Memory: one fetch answer at a time. Nothing that an origin does ends the thread: it waits and tries again,
except that a partition whose origin was recreated or has lost what was to be read next stays stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from millrace.cluster import Cluster
from millrace.cluster_state import BrokerAddress, OriginRecreated
from millrace.compression import Buffer
from millrace.config import OriginConfig
from millrace.errors import (
    ErrorCode,
    LeaderNotAvailable,
    MillraceError,
    NotLeader,
    UnknownTopicOrPartition,
)
from millrace.mirror.origin import FETCH_WAIT_MS, OriginTopic
from millrace.mirror.runs import OffsetRules, OriginChanged, Run, beginning, next_run, readable_from
from millrace.mirror.states import MirrorState, MirrorStates, State
from millrace.storage.position import MirrorPosition, Origin, PositionMismatch
from millrace.wire.fetch import FetchedPartition, error_name

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""How soon new topics, partitions and leaders are noticed."""
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
APPEND_TIMEOUT_SECONDS = 60.0
STOP_CHECK_SECONDS = 0.2
SETTLE_SECONDS = 2.0
"""Give no targets to brokers while others are just coming up: the first would get them all."""

_NOT_HERE = (NotLeader, LeaderNotAvailable, UnknownTopicOrPartition)
Recorded = MirrorPosition | None


class MirrorTarget(Protocol):
    """The broker's side of mirroring, handed in. Both methods are called from the pulling threads."""

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """What is recorded in a partition; NotLeader, LeaderNotAvailable, Unknown… when it is not here."""

    def append_mirrored(
        self, topic: str, number: int, expected: int | None, batches: Sequence[Buffer],
        position: MirrorPosition,
    ) -> Future[int]:  # fmt: skip
        """Have the broker's loop compare and append; the future raises what the log raised."""


@dataclass(slots=True)
class Pull:
    """One origin partition that this broker copies."""

    origin: Origin
    target: int
    recreated: bool = False
    """Another topic has the origin's name now: nothing is ever fetched for this one again."""
    stopped: bool = False
    stopped_at: Recorded = None
    """What was recorded when it stopped: a reset changes it, and the copying goes on."""
    start: int = -1
    """Where to begin when nothing is recorded; -1: not asked yet."""
    skip_to: int = -1
    """A fetch offset past the recorded one that leaves out no record; -1: none."""
    retry_at: float = 0.0
    pause: float = 0.0
    high_watermark: int = -1


class TopicPuller:
    """Copies one topic of one origin; `run` is the thread's function and returns after `stop`."""

    def __init__(
        self, name: str, config: OriginConfig, topic: str, broker_id: int, cluster: Cluster,
        target: MirrorTarget, states: MirrorStates, *, pulls: bool = True,
    ) -> None:  # fmt: skip
        self.name = f"{name} {topic}"
        self._origin_cluster, self._topic, self._broker_id, self._pulls = name, topic, broker_id, pulls
        self._cluster, self._target, self._states = cluster, target, states
        self._origin = OriginTopic(config, topic, f"millrace-mirror-{broker_id}")
        self._rules = OffsetRules(byte_positions=True)
        self._pulled: dict[int, Pull] = {}
        self._stale, self._assigned_at, self._turn, self._told = True, 0.0, 0, ""
        self._brokers: tuple[Mapping[int, BrokerAddress], float] = ({}, 0.0)
        self._wake, self._stopping = threading.Event(), threading.Event()

    def wake(self) -> None:
        """The cluster has changed: look at it again now. From any thread."""
        self._stale = True
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return soon. From any thread."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Copy until `stop`."""
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                if self._stale or time.monotonic() - self._assigned_at >= REFRESH_SECONDS:
                    self._assign()
                if not self._round():
                    self._sleep(FETCH_WAIT_MS / 1000)
                pause, self._told = FIRST_PAUSE_SECONDS, ""
            except UnknownTopicOrPartition as error:
                self._everything_waits(str(error))
                self._sleep(REFRESH_SECONDS)
            except MillraceError as error:
                self._everything_waits(str(error))
                self._sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            except Exception as error:  # a mistake of ours must stop neither the broker nor other topics
                log.exception("mirror of %s failed; it is tried again", self.name)
                self._everything_waits(f"unexpected {type(error).__name__}: {error}")
                self._sleep(MAX_PAUSE_SECONDS)
        self._origin.close()

    def _sleep(self, seconds: float) -> None:
        self._wake.wait(seconds)
        if not self._stopping.is_set():
            self._wake.clear()

    # Which partitions

    def _assign(self) -> None:
        """Find the origin's partitions, give each a target, keep those whose target this broker leads."""
        self._stale = False
        metadata = self._origin.describe()
        self._rules = self._origin.offset_rules()
        settled = self._brokers_have_settled()
        found: dict[int, Pull] = {}
        for partition in metadata.partitions:
            origin = Origin(self._origin_cluster, self._topic, metadata.topic_id, partition)
            pull = self._assigned(origin, settled)
            if pull is not None:
                found[partition] = pull
        for partition, gone in self._pulled.items():
            if partition not in found or found[partition].target != gone.target:
                self._states.forget(self._topic, gone.target)
        self._pulled = found
        self._assigned_at = time.monotonic()

    def _assigned(self, origin: Origin, settled: bool) -> Pull | None:
        topic = self._cluster.topics.get(self._topic)
        target = topic.target_of(origin) if topic is not None else None
        if target is None:
            if not settled:
                self._stale = True
                return None
            try:
                target = self._cluster.allocate_mirror(self._topic, origin)
            except OriginRecreated as error:
                return self._recreated(origin, str(error))
        if not self._leads(target) or not self._pulls:
            return None
        known = self._pulled.get(origin.partition)
        if known is not None and (known.origin, known.target) == (origin, target):
            return known
        return Pull(origin, target)

    def _leads(self, target: int) -> bool:
        topic = self._cluster.topics.get(self._topic)
        partition = topic.partitions.get(target) if topic is not None else None
        return partition is not None and partition.leader == self._broker_id

    def _brokers_have_settled(self) -> bool:
        now, (brokers, since) = time.monotonic(), self._brokers
        if self._cluster.brokers != brokers:
            self._brokers = (self._cluster.brokers, now)
            return False
        return now - since >= SETTLE_SECONDS

    def _recreated(self, origin: Origin, reason: str) -> Pull | None:
        """The stopped mirror of the topic that is gone, if this broker leads it."""
        topic = self._cluster.topics.get(self._topic)
        former = topic.former_origin(origin) if topic is not None else None
        target = topic.target_of(former) if topic is not None and former is not None else None
        if former is None or target is None or not self._leads(target) or not self._pulls:
            return None
        pull = Pull(former, target, recreated=True, stopped=True)
        self._report(pull, State.STOPPED, reason)
        return pull

    # One round

    def _round(self) -> bool:
        """Fetch, check, append; False when there was no partition to fetch."""
        before = self._positions()
        if not before:
            return False
        pulls = {partition: self._pulled[partition] for partition in before}
        found, failed = self._origin.fetch(
            {p: max(position.cursor.next_offset, pulls[p].skip_to) for p, (_, position) in before.items()}
        )
        for partition, why in failed.items():
            self._waits(pulls[partition], why)
        # A fetch is by name: before anything is copied, make sure which topic has answered.
        topic_id = next(iter(pulls.values())).origin.topic_id
        something = any(answer.records or answer.error for answer in found.values())
        if something and not self._origin.has_id(topic_id):
            self._stale = True
            return True
        appends = []
        for partition, answer in found.items():
            run = self._take(pulls[partition], *before[partition], answer)
            if run is not None and not self._stopping.is_set():
                appends.append((pulls[partition], self._append(pulls[partition], run)))
        for pull, future in appends:
            self._finish(pull, future)
        return True

    def _positions(self) -> dict[int, tuple[Recorded, MirrorPosition]]:
        """Partition -> (what is recorded, where to go on) of those to be fetched now, in turns."""
        now, found = time.monotonic(), dict[int, tuple[Recorded, MirrorPosition]]()
        self._turn += 1
        pulled = sorted(self._pulled)
        shift = self._turn % len(pulled) if pulled else 0
        # The first partition of a fetch may always send a batch, however large: every one comes first once.
        for partition in pulled[shift:] + pulled[:shift]:
            pull = self._pulled[partition]
            if pull.recreated or pull.retry_at > now:
                continue
            try:
                recorded = self._target.mirror_position(self._topic, pull.target)
            except _NOT_HERE:
                continue  # the log is not open yet, or no longer
            if pull.stopped and recorded == pull.stopped_at:
                continue
            pull.stopped = False
            if recorded is None and pull.start < 0:
                pull.start, _ = self._origin.bounds(partition)
            found[partition] = (recorded, recorded or beginning(pull.origin, pull.start))
        return found

    def _take(
        self, pull: Pull, recorded: Recorded, position: MirrorPosition, answer: FetchedPartition
    ) -> Run | None:
        """The run to append, or None; the pull's state says why there is none."""
        try:
            if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(pull, recorded, position)
                return None
            if answer.error:
                self._stale = True
                raise MillraceError(f"the origin answers {error_name(answer.error)}")
            pull.high_watermark = answer.high_watermark
            run = next_run(recorded, position, answer, self._rules)
        except OriginChanged as error:
            pull.stopped, pull.stopped_at = True, recorded
            self._report(pull, State.STOPPED, str(error))
            return None
        except MillraceError as error:
            self._waits(pull, str(error))
            return None
        if run is None:
            self._runs(pull)
        return run

    def _out_of_range(self, pull: Pull, recorded: Recorded, position: MirrorPosition) -> None:
        """OriginChanged when offsets that were to be read are gone; else find where reading goes on."""
        earliest, pull.high_watermark = self._origin.bounds(pull.origin.partition)
        if recorded is None:
            pull.start = earliest
        else:
            pull.skip_to = readable_from(position.cursor, earliest, pull.high_watermark, self._rules)

    def _append(self, pull: Pull, run: Run) -> Future[int]:
        return self._target.append_mirrored(
            self._topic, pull.target, run.expected, run.batches, run.position
        )  # fmt: skip

    def _finish(self, pull: Pull, future: Future[int]) -> None:
        deadline = time.monotonic() + APPEND_TIMEOUT_SECONDS
        while not self._stopping.is_set():  # a broker that stops may never run the append
            try:
                future.result(STOP_CHECK_SECONDS)
            except PositionMismatch:
                return  # somebody else was faster; the next round begins where they ended
            except _NOT_HERE:
                self._stale = True
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                self._waits(pull, "cannot append: the broker is busy")
            except MillraceError as error:
                self._waits(pull, f"cannot append: {error}")
            else:
                pull.skip_to = -1
                self._runs(pull)
            return

    # What people see

    def _runs(self, pull: Pull) -> None:
        pull.pause = 0.0
        self._report(pull, State.RUNNING)

    def _waits(self, pull: Pull, reason: str) -> None:
        pull.pause = min(2 * pull.pause or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        pull.retry_at = time.monotonic() + pull.pause
        self._report(pull, State.WAITING, reason)

    def _everything_waits(self, reason: str) -> None:
        self._stale = True
        if reason != self._told:
            log.warning("mirror of %s waits: %s", self.name, reason)
            self._told = reason
        for pull in self._pulled.values():
            if not pull.stopped:
                self._report(pull, State.WAITING, reason, quiet=True)

    def _report(self, pull: Pull, state: State, detail: str = "", *, quiet: bool = False) -> None:
        found = MirrorState(pull.origin, state, detail, pull.high_watermark)
        self._states.put(self._topic, pull.target, found, quiet=quiet)
