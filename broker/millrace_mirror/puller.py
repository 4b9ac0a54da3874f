"""One thread that copies the partitions led by one broker of an origin into the partitions led here.

A round fetches from every partition at once, checks that the topics are still the same, appends each
partition's runs, and waits for the appends. While there is much to copy, the next answer arrives during the
appends. A position is read from the target's log when a round begins, and again before an append, so that
another process's append or reset in the meantime is noticed. The append itself compares the positions, too.

For fairness, the partition served last is requested last. The memory is two answers, in two buffers that are
used in turn. The thread waits and retries, whatever an origin does. Only a partition whose next offsets are
lost stays stopped, until `millrace mirror reset`. The loss is noticed here (`_out_of_range`) when the origin
refuses the offset, and in runs.py (`_check_follows`) when the origin sends later batches. Each fetch states
the epoch of the last batch copied: an origin that has reused offsets reports it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from millrace.client.errors import MOVED, in_words
from millrace.client.fetcher import FIRST_PAUSE_SECONDS, BrokerFetcher, FetchLimits, Puller
from millrace.client.runs import (
    OffsetRules,
    OriginChanged,
    OriginWasCut,
    Run,
    beginning,
    readable_after_refusal,
    runs_of,
)
from millrace.config import ClientSecurity
from millrace.errors import (
    ErrorCode,
    LeaderNotAvailable,
    MillraceError,
    NotLeader,
    StorageError,
    UnknownTopicOrPartition,
)
from millrace.records.mirror_position import MirrorPosition, Origin, PositionMismatch
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition
from millrace.wire.primitives import MIN_ITEM_LIMIT
from millrace_broker.allowance import Allowance
from millrace_broker.partitions.broker import TargetAppend
from millrace_mirror.states import MirrorState, MirrorStates, State

logger = logging.getLogger("millrace.mirror.puller")

ANSWER_BYTES = 4 << 20
"""Most bytes of one answer. A single larger batch still comes whole."""
PARTITION_BYTES = 2 << 20
SMALL_ANSWER_BYTES = 256 << 10
"""Size of an answer above which an origin gets large buffers."""
FRAMING_BYTES = 1 << 20
FETCH_WAIT_MS = 500
MAX_PAUSE_SECONDS = 5.0
APPEND_TIMEOUT_SECONDS = 60.0
STOP_CHECK_SECONDS = 0.2
LARGE_ANSWER_BYTES = ANSWER_BYTES // 8
"""Size of an answer from which the next request is sent at once."""
MAX_NEWS = MIN_ITEM_LIMIT // 2
"""Most changed partitions taken from one answer. The following request for their topic ids has a limit."""
PACE_SECONDS = 50e-6
"""Shortest time between requests, multiplied by the partitions, unless there is much to copy. Requests for
thousands of partitions must not use a whole core."""

_LEADER_MOVED = (NotLeader, LeaderNotAvailable, UnknownTopicOrPartition)


class MirrorTarget(Protocol):
    """The target's side of mirroring. Both methods are called from the pulling threads."""

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """Return the recorded position of a partition.

        Raise NotLeader, LeaderNotAvailable or UnknownTopicOrPartition if this broker does not lead the
        partition. Raise StorageError if its log cannot be opened.
        """

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        """Compare positions and append, in order.

        The result of each append is None or the exception raised.
        """


@dataclass(slots=True)
class Pull:
    """One origin partition with a target here.

    It belongs to the thread that reads from the origin's leader.
    """

    origin: Origin
    target: int
    rules: OffsetRules
    leader: int
    """The origin's broker that leads the partition."""
    leader_epoch: int = -1
    """The leader's epoch; -1: not known."""
    stopped: bool = False
    stopped_at: MirrorPosition | None = None
    """Recorded position when copying stopped; copying continues when a reset changes it."""
    start: int = -1
    """First offset to read when nothing is recorded; -1: not requested yet."""
    skip_to: int = -1
    """A fetch offset after the recorded offset, with no record between the two; -1: none."""
    retry_at: float = 0.0
    pause: float = 0.0
    high_watermark: int = -1
    running: bool = False
    """True once the state `running` was reported and nothing has changed since."""
    caught_up_ms: int | None = None
    """Time of the newest request whose answer left nothing to copy. Later records arrived after it."""
    is_first_copy: bool = False
    """True while messages from before the mirror began are copied."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.origin.topic, self.origin.partition

    def is_same(self, other: Pull) -> bool:
        """Return True if both copy the same partition, in the same way, from the same leader."""
        mine = (self.origin, self.target, self.rules, self.leader, self.leader_epoch)
        return mine == (other.origin, other.target, other.rules, other.leader, other.leader_epoch)


@dataclass(slots=True)
class _Fetch:
    """One partition in a fetch: the position that must be recorded at the append, and the answer."""

    pull: Pull
    recorded: MirrorPosition | None
    offset: int
    """Requested offset."""
    error: int = 0
    high_watermark: int = -1
    runs: Sequence[Run] = ()
    problem: MillraceError | None = None
    """Error that prevents the runs."""
    requested_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def before(self) -> MirrorPosition:
        return self.recorded or beginning(self.pull.origin, self.pull.start)

    @property
    def last_epoch(self) -> int:
        """Epoch of the batch before the requested offset; -1: not known."""
        cursor = self.before.cursor
        return cursor.epoch if cursor.next_offset == self.offset else -1

    def take(self, answer: FetchedPartition) -> None:
        self.error, self.high_watermark = answer.error, answer.high_watermark
        if not answer.error:
            try:
                self.runs = list(runs_of(self.recorded, self.before, answer, self.pull.rules))
            except MillraceError as error:
                self.problem = error

    def note_caught_up(self, high_watermark: int) -> None:
        """Note on the pull if the answer, which is appended by now, has left nothing to copy."""
        end = self.runs[-1].position.cursor.next_offset if self.runs else self.offset
        if end >= high_watermark:
            self.pull.caught_up_ms, self.pull.is_first_copy = self.requested_ms, False


class BrokerPuller(Puller):
    """Copies the partitions that one broker of one origin leads."""

    max_pause_seconds = MAX_PAUSE_SECONDS

    def __init__(
        self,
        name: str,
        client_id: str,
        target: MirrorTarget,
        states: MirrorStates,
        allowance: Allowance,
        refresh: Callable[[], None],
        security: ClientSecurity,
    ) -> None:
        """Prepare the thread; `refresh` is called when the origin's broker no longer has or leads a requested
        partition.
        """
        super().__init__(f"mirror {name}", client_id, logger, f"mirror of {name} waits", security)
        self._target, self._states, self._allowance, self._refresh = target, states, allowance, refresh
        self._assignment: tuple[tuple[str, int], Mapping[TopicPartition, Pull]] = (("", 0), {})
        self._requested: dict[TopicPartition, _Fetch] = {}
        self._requested_at, self._last_bytes = 0.0, 0
        self._buffers: list[bytearray | None] = [None, None]
        self._large_answers = False

    # From any thread

    def assign(self, address: tuple[str, int], pulls: Mapping[TopicPartition, Pull]) -> None:
        """Copy these partitions from now on, from the broker at this address."""
        if (address, pulls) != self._assignment:
            self._assignment = (address, pulls)
            self.wake()

    # In the thread

    def address(self) -> tuple[str, int]:
        return self._assignment[0]

    def epoch_of(self, partition: TopicPartition) -> int:
        pull = self._assignment[1].get(partition)
        return -1 if pull is None else pull.leader_epoch

    def round(self) -> None:
        broker = self.connected()
        if broker.idle and not self._request(broker, ahead=None):
            self.sleep(FETCH_WAIT_MS / 1000)
            return
        requested = self._requested
        answers = broker.receive(self._next_buffer())
        self._last_bytes = broker.answer_bytes
        self._large_answers = self._large_answers or self._last_bytes > SMALL_ANSWER_BYTES
        self._allowance.took(self._last_bytes)
        news: list[tuple[_Fetch, FetchedPartition]] = []
        for name, answer in answers.items():
            fetch = requested.get(name)
            if fetch is None:
                continue
            if answer.records or answer.error or answer.parting:
                news.append((fetch, answer))
                continue
            fetch.note_caught_up(answer.high_watermark)
            if fetch.pull.high_watermark != answer.high_watermark or not fetch.pull.running:
                fetch.take(answer)
                self._note(fetch)
        if news:
            self._take(broker, news[:MAX_NEWS])  # the rest is requested again, first

    def _next_buffer(self) -> bytearray | None:
        """Return the buffer for the next answer. Its old content was appended before the last answer came."""
        self._buffers.reverse()
        if self._large_answers and self._buffers[0] is None:
            self._buffers[0] = bytearray(ANSWER_BYTES + FRAMING_BYTES)
        return self._buffers[0]

    def _take(self, broker: BrokerFetcher, news: list[tuple[_Fetch, FetchedPartition]]) -> None:
        # A fetch names topics: before copying, ask for the ids of the topics that have answered.
        broker.request_topic_ids({fetch.pull.origin.topic for fetch, _ in news})
        for fetch, answer in news:
            fetch.take(answer)
        fetches = [fetch for fetch, _ in news]
        ahead = {fetch.pull.topic_partition: fetch.runs[-1].position for fetch in fetches if fetch.runs}
        self.serve_last(ahead)
        if self._last_bytes >= LARGE_ANSWER_BYTES and not any(fetch.error for fetch in fetches):
            self._request(broker, ahead=ahead)
        ids = broker.receive_topic_ids()
        same: list[_Fetch] = []
        for fetch in fetches:
            if ids.get(fetch.pull.origin.topic) == fetch.pull.origin.topic_id:
                same.append(fetch)
            else:  # the partition stays assigned here until the watch, too, sees the new topic
                self._waits(fetch.pull, "the origin's broker has another topic of that name now, or none")
        if len(same) < len(fetches):
            self._refresh()
        self._append([fetch for fetch in same if fetch.runs])
        for fetch in same:
            if not fetch.runs and not fetch.error:
                self._note(fetch)
        self._handle_errors(broker, [fetch for fetch in same if fetch.error])

    # Requests

    def _request(
        self, broker: BrokerFetcher, *, ahead: Mapping[TopicPartition, MirrorPosition] | None
    ) -> bool:
        """Send a fetch of all partitions that may be fetched now; `ahead` holds positions not recorded yet.

        Return False when there is nothing to fetch or, with `ahead`, when the fetch would have to wait.
        """
        wait = self._allowance.wait_seconds()
        if ahead is None:
            self._keep_pace(wait)
        elif wait > 0:
            return False
        if self.stopping.is_set():
            return False
        fetches = self._fetches(broker, ahead)
        if not fetches:
            return False
        most = self._allowance.most()
        limits = FetchLimits(
            max_bytes=most, partition_max_bytes=min(PARTITION_BYTES, most), max_wait_ms=FETCH_WAIT_MS
        )
        broker.request(
            {name: fetch.offset for name, fetch in fetches.items()},
            limits,
            {name: fetch.last_epoch for name, fetch in fetches.items()},
        )
        self._requested, self._requested_at = fetches, time.monotonic()
        return True

    def _keep_pace(self, wait: float) -> None:
        if self._last_bytes < LARGE_ANSWER_BYTES:
            due = self._requested_at + PACE_SECONDS * len(self._assignment[1])
            wait = max(wait, due - time.monotonic())
        while wait > 0 and not self.stopping.is_set():
            self.stopping.wait(min(wait, STOP_CHECK_SECONDS))
            wait -= STOP_CHECK_SECONDS

    def _fetches(
        self, broker: BrokerFetcher, ahead: Mapping[TopicPartition, MirrorPosition] | None
    ) -> dict[TopicPartition, _Fetch]:
        now, fetches = time.monotonic(), dict[TopicPartition, _Fetch]()
        without_start: list[Pull] = []
        pulls = self._assignment[1]
        for name in self.in_turn(pulls.keys()):
            pull = pulls[name]
            if pull.retry_at > now:
                continue
            recorded = ahead.get(name) if ahead else None
            if recorded is None:
                try:
                    recorded = self._target.mirror_position(pull.origin.topic, pull.target)
                except _LEADER_MOVED:
                    continue  # the log is not open yet, or no longer
                except StorageError as problem:  # it could not be opened: other partitions continue
                    self._waits(pull, f"cannot append: {problem}")
                    continue
                if pull.stopped and recorded == pull.stopped_at:
                    continue
                pull.stopped = False
                if recorded is None and pull.start < 0:
                    without_start.append(pull)
                    continue
            fetches[name] = _fetch_of(pull, recorded)
        if without_start and ahead is None:  # otherwise another answer is in flight
            self._find_starts(broker, without_start)
            fetches |= {p.topic_partition: _fetch_of(p, None) for p in without_start if p.start >= 0}
        return fetches

    def _find_starts(self, broker: BrokerFetcher, pulls: Collection[Pull]) -> None:
        bounds = broker.bounds([pull.topic_partition for pull in pulls])
        for pull in pulls:
            if pull.topic_partition in bounds:
                pull.start, pull.high_watermark = bounds[pull.topic_partition]
            else:
                self._refresh()
                self._waits(pull, "the origin does not report its first offset")

    # Appends

    def _append(self, fetches: list[_Fetch]) -> None:
        """Append runs to logs whose recorded positions have not changed since the runs were requested."""
        appends, appended = list[TargetAppend](), list[tuple[_Fetch, Run]]()
        for fetch in fetches:
            pull = fetch.pull
            pull.high_watermark = fetch.high_watermark
            try:
                recorded = self._target.mirror_position(pull.origin.topic, pull.target)
            except _LEADER_MOVED:
                continue
            except StorageError as problem:
                self._waits(pull, f"cannot append: {problem}")
                continue
            if _offset(recorded) != _offset(fetch.recorded):
                continue  # another process was faster, or an append before this one failed
            if fetch.recorded is None:
                pull.is_first_copy = True
            for run in fetch.runs:
                visible = self._states.when_visible(
                    pull.origin, pull.target, run, pull.caught_up_ms, is_first_copy=pull.is_first_copy
                )
                appends.append(TargetAppend(pull.origin.topic, pull.target, run, visible))
                appended.append((fetch, run))
        if appends and not self.stopping.is_set():
            for (fetch, run), error in zip(appended, self._outcomes(appends), strict=False):
                self._finish(fetch.pull, error)
                if error is None and run is fetch.runs[-1]:
                    fetch.note_caught_up(fetch.high_watermark)

    def _outcomes(self, appends: Sequence[TargetAppend]) -> list[Exception | None]:
        """Return the results of the appends; empty when this thread is stopped before they are known."""
        future = self._target.append_mirrored(appends)
        deadline = time.monotonic() + APPEND_TIMEOUT_SECONDS
        while not self.stopping.is_set():  # a broker that stops may never run the appends
            try:
                return future.result(STOP_CHECK_SECONDS)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    break
        self._buffers = [None, None]  # the pending appends still use their memory
        if not self.stopping.is_set():
            raise MillraceError("cannot append: the broker is busy")
        return []

    def _finish(self, pull: Pull, error: Exception | None) -> None:
        if error is None:
            pull.skip_to = -1
            self._is_running(pull)
        elif isinstance(error, (PositionMismatch, *_LEADER_MOVED)):
            pass  # another process was faster, or leads now: the next round begins at the new position
        elif isinstance(error, MillraceError):
            self._waits(pull, f"cannot append: {error}")
        else:
            raise error

    # Answers without records

    def _note(self, fetch: _Fetch) -> None:
        """Report the mirror's state after an answer with nothing to append."""
        pull = fetch.pull
        if pull.high_watermark != fetch.high_watermark:
            pull.high_watermark, pull.running = fetch.high_watermark, False
        if isinstance(fetch.problem, OriginChanged):
            self._stops(fetch, fetch.problem)
        elif fetch.problem is not None:
            self._waits(pull, str(fetch.problem))
        elif not pull.running:
            self._is_running(pull)

    def _handle_errors(self, broker: BrokerFetcher, failed: list[_Fetch]) -> None:
        lost = [f.pull.topic_partition for f in failed if f.error == ErrorCode.OFFSET_OUT_OF_RANGE]
        bounds = broker.bounds(lost) if lost else {}
        for fetch in failed:
            pull = fetch.pull
            if pull.topic_partition in bounds:
                self._out_of_range(fetch, *bounds[pull.topic_partition])
                continue
            if fetch.error in MOVED:
                self._refresh()
            self._waits(pull, f"at the origin, {in_words(fetch.error)}")

    def _out_of_range(self, fetch: _Fetch, earliest: int, high_watermark: int) -> None:
        """Stop if the next offsets are lost; otherwise find the offset at which reading continues."""
        pull = fetch.pull
        pull.high_watermark = high_watermark
        if fetch.recorded is None:
            pull.start = earliest
            return
        try:
            pull.skip_to = readable_after_refusal(
                fetch.before, fetch.offset, earliest, high_watermark, pull.rules
            )
        except OriginChanged as error:
            self._stops(fetch, error)

    # States

    def _is_running(self, pull: Pull) -> None:
        pull.pause, pull.running = 0.0, True
        self._report(pull, State.RUNNING)

    def _stops(self, fetch: _Fetch, why: OriginChanged) -> None:
        pull = fetch.pull
        pull.running = False
        if isinstance(why, OriginWasCut):  # retried: a replaced leader may have answered
            pull.retry_at = time.monotonic() + MAX_PAUSE_SECONDS
        else:
            pull.stopped, pull.stopped_at = True, fetch.recorded
        origin = pull.origin
        command = f"--origin {origin.cluster} --topic {origin.topic} --partition {origin.partition}"
        self._report(pull, State.STOPPED, f"{why}; to go on: millrace mirror reset CONFIG {command}")

    def _waits(self, pull: Pull, reason: str) -> None:
        pull.pause = min(2 * pull.pause or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        pull.retry_at, pull.running = time.monotonic() + pull.pause, False
        self._report(pull, State.WAITING, reason)

    def failed(self, reason: str) -> None:
        self._refresh()
        for pull in self._assignment[1].values():
            if not pull.stopped:
                pull.running = False
                self._report(pull, State.WAITING, reason, quiet=True)

    def _report(self, pull: Pull, state: State, detail: str = "", *, quiet: bool = False) -> None:
        if self.stopping.is_set() or self._assignment[1].get(pull.topic_partition) is not pull:
            return  # the partition is now pulled by another thread, or by none
        reported = MirrorState(pull.origin, state, detail, pull.high_watermark)
        self._states.put(pull.origin.topic, pull.target, reported, quiet=quiet)


def _fetch_of(pull: Pull, recorded: MirrorPosition | None) -> _Fetch:
    next_offset = recorded.cursor.next_offset if recorded is not None else pull.start
    return _Fetch(pull, recorded, max(next_offset, pull.skip_to))


def _offset(recorded: MirrorPosition | None) -> tuple[int, int] | None:
    """Return the fields that identify a recorded position.

    The offset alone does not: a reset may go back to an earlier offset.
    """
    return None if recorded is None else (recorded.cursor.next_offset, recorded.reset_at)
