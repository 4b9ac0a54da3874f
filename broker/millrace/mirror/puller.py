"""One thread that copies all that one broker of an origin leads into the partitions led here.

A round: ask for what is new in every partition at once, check that the topics are still the same ones, append
each partition's runs, wait for the appends. While much is to be copied the next answer is on its way during
the appends. A position is read from the target's log when a round begins, and again before anything is
appended, so whoever else appended or reset in the meantime is taken into account; the append itself compares.

Fair: who was served last is asked for last. Memory: two answers. Nothing that an origin does ends the thread:
it waits and tries again, except that a partition that has lost what was to be read next stays stopped.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from millrace.errors import (
    ErrorCode,
    LeaderNotAvailable,
    MillraceError,
    NotLeader,
    UnknownTopicOrPartition,
)
from millrace.mirror.allowance import Allowance
from millrace.mirror.origin_broker import ANSWER_BYTES, OriginBroker
from millrace.mirror.pull import MirrorTarget, Pull, Recorded, TargetAppend
from millrace.mirror.runs import OriginChanged, Run, beginning, readable_from, runs_of
from millrace.mirror.states import MirrorState, MirrorStates, State
from millrace.records.mirror_position import MirrorPosition, PositionMismatch
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, error_name

log = logging.getLogger(__name__)

FETCH_WAIT_MS = 500
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
APPEND_TIMEOUT_SECONDS = 60.0
STOP_CHECK_SECONDS = 0.2
MUCH_BYTES = ANSWER_BYTES // 8
"""An answer this large is followed at once by the next."""
PACE_SECONDS = 50e-6
"""For each partition asked for, unless there is much to copy: asking for thousands must not fill a core."""

_NOT_HERE = (NotLeader, LeaderNotAvailable, UnknownTopicOrPartition)
_MOVED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A partition in a fetch under way: what must be recorded when its answer is appended."""

    pull: Pull
    recorded: Recorded
    before: MirrorPosition


class BrokerPuller:
    """Copies what one broker of one origin leads; `run` is the thread's function and returns after `stop`."""

    def __init__(
        self, name: str, client_id: str, target: MirrorTarget, states: MirrorStates, allowance: Allowance,
        look_again: Callable[[], None],
    ) -> None:  # fmt: skip
        """`look_again` is called when the origin no longer has or leads what it was asked for."""
        self._name, self._look_again = name, look_again
        self._client_id, self._target, self._states, self._allowance = client_id, target, states, allowance
        self._assignment: tuple[tuple[str, int], Mapping[TopicPartition, Pull]] = (("", 0), {})
        self._broker: OriginBroker | None = None
        self._order: list[Pull] = []
        self._ordered: Mapping[TopicPartition, Pull] = {}
        self._asked: dict[TopicPartition, _Asked] = {}
        self._asked_at, self._last_size, self._told = 0.0, 0, ""
        self._wake, self._stopping = threading.Event(), threading.Event()

    # From any thread

    def assign(self, address: tuple[str, int], pulls: Mapping[TopicPartition, Pull]) -> None:
        """Copy these from now on, read at this address."""
        if (address, pulls) != self._assignment:
            self._assignment = (address, pulls)
            self._wake.set()

    def stop(self) -> None:
        """Let `run` return soon."""
        self._stopping.set()
        self._wake.set()

    # In the thread

    def run(self) -> None:
        """Copy until `stop`."""
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                self._round()
                pause, self._told = FIRST_PAUSE_SECONDS, ""
                continue
            except MillraceError as error:
                reason = str(error)
            except Exception as error:  # a mistake of ours must stop neither the broker nor other origins
                reason = f"unexpected {type(error).__name__}: {error}"
                log.log(logging.ERROR if reason != self._told else logging.DEBUG, "mirror", exc_info=error)
            self._give_up_connection()
            self._everything_waits(reason)
            self._sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        self._give_up_connection()

    def _sleep(self, seconds: float) -> None:
        self._wake.wait(seconds)
        if not self._stopping.is_set():
            self._wake.clear()

    def _give_up_connection(self) -> None:
        self._asked = {}
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _connection(self) -> OriginBroker:
        address = self._assignment[0]
        if self._broker is not None and self._broker.address != address and not self._asked:
            self._give_up_connection()
        if self._broker is None:
            self._broker = OriginBroker(address, self._client_id)
        return self._broker

    # One round

    def _round(self) -> None:
        broker = self._connection()
        if not self._asked and not self._ask(broker):
            self._sleep(FETCH_WAIT_MS / 1000)
            return
        asked, self._asked = self._asked, {}
        found, size = broker.answer()
        self._allowance.took(size)
        self._last_size = size
        answers = {place: answer for place, answer in found.items() if place in asked}
        topics = {place[0] for place, answer in answers.items() if answer.records or answer.error}
        if not topics:
            self._note_idle(asked, answers)
            return
        # A fetch is by name: before anything is copied, make sure which topics have answered.
        broker.ask_ids(topics)
        looked = {place: _look(asked[place], answer) for place, answer in answers.items()}
        runs = {place: found for place, found in looked.items() if isinstance(found, list) and found}
        self._serve_last({place: asked[place].pull for place in runs})
        if size >= MUCH_BYTES and not any(answer.error for answer in answers.values()):
            self._ask(broker, {place: found[-1].position for place, found in runs.items()})
        ids = broker.ids()
        same = {place for place in answers if ids.get(place[0]) == asked[place].pull.origin.topic_id}
        if any(place[0] in topics for place in answers.keys() - same):
            self._look_again()
        for place in same & runs.keys():
            asked[place].pull.high_watermark = answers[place].high_watermark
        self._append(broker, asked, {place: found for place, found in runs.items() if place in same})
        for place in same - runs.keys():
            self._note(asked[place], answers[place], looked[place])
        self._handle_errors(broker, asked, {p: answers[p] for p in same if answers[p].error})

    def _ask(
        self, broker: OriginBroker, ahead: Mapping[TopicPartition, MirrorPosition] | None = None
    ) -> bool:
        """Send a fetch of all that may be fetched now; `ahead` tells positions that are about to be recorded.

        False when there is nothing to fetch, or, with `ahead`, when it would have to wait.
        """
        wait = self._allowance.wait_seconds()
        if ahead is not None and wait > 0:
            return False
        if ahead is None:
            self._keep_pace(wait)
        if self._stopping.is_set():
            return False
        asked = self._to_ask(broker, ahead or {})
        if not asked:
            return False
        offsets = [
            (*place, max(one.before.cursor.next_offset, one.pull.skip_to)) for place, one in asked.items()
        ]
        broker.ask(offsets, max_bytes=self._allowance.most(), wait_ms=FETCH_WAIT_MS)
        self._asked, self._asked_at = asked, time.monotonic()
        return True

    def _keep_pace(self, wait: float) -> None:
        if self._last_size < MUCH_BYTES:
            due = self._asked_at + PACE_SECONDS * len(self._order)
            wait = max(wait, due - time.monotonic())
        while wait > 0 and not self._stopping.is_set():
            self._stopping.wait(min(wait, STOP_CHECK_SECONDS))
            wait -= STOP_CHECK_SECONDS

    def _to_ask(
        self, broker: OriginBroker, ahead: Mapping[TopicPartition, MirrorPosition]
    ) -> dict[TopicPartition, _Asked]:
        now, asked = time.monotonic(), dict[TopicPartition, _Asked]()
        unknown = list[Pull]()
        for pull in self._in_order():
            if pull.retry_at > now:
                continue
            place = pull.place
            recorded = ahead.get(place)
            if recorded is None:
                try:
                    recorded = self._target.mirror_position(pull.origin.topic, pull.target)
                except _NOT_HERE:
                    continue  # the log is not open yet, or no longer
                if pull.stopped and recorded == pull.stopped_at:
                    continue
                pull.stopped = False
                if recorded is None and pull.start < 0:
                    unknown.append(pull)
                    continue
            asked[place] = _Asked(pull, recorded, recorded or beginning(pull.origin, pull.start))
        if unknown and not ahead:
            self._find_starts(broker, unknown)
            asked |= {
                pull.place: _Asked(pull, None, beginning(pull.origin, pull.start))
                for pull in unknown if pull.start >= 0
            }  # fmt: skip
        return asked

    def _in_order(self) -> list[Pull]:
        """What is assigned; those served last come last. The first of an answer may always send a batch."""
        pulls = self._assignment[1]
        if pulls is not self._ordered:
            kept = [pull for pull in self._order if pulls.get(pull.place) is pull]
            new = pulls.keys() - {pull.place for pull in kept}
            self._order = [pulls[place] for place in sorted(new)] + kept
            self._ordered = pulls
        return self._order

    def _serve_last(self, served: Mapping[TopicPartition, Pull]) -> None:
        if served:
            kept = [pull for pull in self._order if pull.place not in served]
            self._order = kept + [pull for pull in self._order if pull.place in served]

    def _find_starts(self, broker: OriginBroker, pulls: Collection[Pull]) -> None:
        found = broker.bounds([pull.place for pull in pulls])
        for pull in pulls:
            if pull.place in found:
                pull.start, pull.high_watermark = found[pull.place]
            else:
                self._look_again()
                self._waits(pull, "the origin does not tell where it begins")

    def _note_idle(
        self, asked: Mapping[TopicPartition, _Asked], answers: Mapping[TopicPartition, FetchedPartition]
    ) -> None:
        for place, answer in answers.items():
            pull = asked[place].pull
            if pull.high_watermark != answer.high_watermark or not pull.running:
                self._note(asked[place], answer, _look(asked[place], answer))

    def _note(self, asked: _Asked, answer: FetchedPartition, looked: list[Run] | MillraceError) -> None:
        """Report what an answer without anything to append means."""
        pull = asked.pull
        if answer.error:
            return
        if pull.high_watermark != answer.high_watermark:
            pull.high_watermark, pull.running = answer.high_watermark, False
        if isinstance(looked, OriginChanged):
            self._stops(asked, looked)
        elif isinstance(looked, MillraceError):
            self._waits(pull, str(looked))
        elif not pull.running:
            self._is_running(pull)

    def _append(
        self,
        broker: OriginBroker,
        asked: Mapping[TopicPartition, _Asked],
        found: Mapping[TopicPartition, list[Run]],
    ) -> None:
        """Append what was found to logs that stand where they stood when it was asked for."""
        appends, pulls = list[TargetAppend](), list[Pull]()
        for place, runs in found.items():
            pull = asked[place].pull
            try:
                recorded = self._target.mirror_position(pull.origin.topic, pull.target)
            except _NOT_HERE:
                continue
            if _offset(recorded) != _offset(asked[place].recorded):
                continue  # somebody else was faster, or an append before this one failed
            for run in runs:
                visible = self._states.when_visible(pull.origin.cluster, pull.origin.topic, pull.target, run)
                appends.append(TargetAppend(pull.origin.topic, pull.target, run, visible))
                pulls.append(pull)
        if appends and not self._stopping.is_set():
            self._await(broker, self._target.append_mirrored(appends), pulls)

    def _await(
        self,
        broker: OriginBroker,
        future: concurrent.futures.Future[list[Exception | None]],
        pulls: list[Pull],
    ) -> None:
        deadline = time.monotonic() + APPEND_TIMEOUT_SECONDS
        while not self._stopping.is_set():  # a broker that stops may never run the appends
            try:
                outcomes = future.result(STOP_CHECK_SECONDS)
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                broker.forget_buffers()
                raise MillraceError("cannot append: the broker is busy") from None
            for pull, error in zip(pulls, outcomes, strict=True):
                self._finish(pull, error)
            return
        broker.forget_buffers()

    def _finish(self, pull: Pull, error: Exception | None) -> None:
        if error is None:
            pull.skip_to = -1
            self._is_running(pull)
        elif isinstance(error, (PositionMismatch, *_NOT_HERE)):
            pass  # somebody else was faster, or leads it now: the next round begins where they ended
        elif isinstance(error, MillraceError):
            self._waits(pull, f"cannot append: {error}")
        else:
            raise error

    def _handle_errors(
        self,
        broker: OriginBroker,
        asked: Mapping[TopicPartition, _Asked],
        failed: Mapping[TopicPartition, FetchedPartition],
    ) -> None:
        lost = [p for p, answer in failed.items() if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE]
        bounds = broker.bounds(lost) if lost else {}
        for place, answer in failed.items():
            pull = asked[place].pull
            if place in bounds:
                self._out_of_range(asked[place], *bounds[place])
            else:
                if answer.error in _MOVED:
                    self._look_again()
                self._waits(pull, f"the origin answers {error_name(answer.error)}")

    def _out_of_range(self, asked: _Asked, earliest: int, high_watermark: int) -> None:
        """Stop when offsets that were to be read are gone; else find where reading goes on."""
        pull = asked.pull
        pull.high_watermark = high_watermark
        if asked.recorded is None:
            pull.start = earliest
            return
        try:
            pull.skip_to = readable_from(asked.before.cursor, earliest, high_watermark, pull.rules)
        except OriginChanged as error:
            self._stops(asked, error)

    # What people see

    def _is_running(self, pull: Pull) -> None:
        pull.pause, pull.running = 0.0, True
        self._report(pull, State.RUNNING)

    def _stops(self, asked: _Asked, why: OriginChanged) -> None:
        asked.pull.stopped, asked.pull.stopped_at, asked.pull.running = True, asked.recorded, False
        self._report(asked.pull, State.STOPPED, str(why))

    def _waits(self, pull: Pull, reason: str) -> None:
        pull.pause = min(2 * pull.pause or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        pull.retry_at, pull.running = time.monotonic() + pull.pause, False
        self._report(pull, State.WAITING, reason)

    def _everything_waits(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        if reason != self._told:
            log.warning("mirror of %s waits: %s", self._name, reason)
            self._told = reason
        self._look_again()
        for pull in self._assignment[1].values():
            if not pull.stopped:
                pull.running = False
                self._report(pull, State.WAITING, reason, quiet=True)

    def _report(self, pull: Pull, state: State, detail: str = "", *, quiet: bool = False) -> None:
        if self._stopping.is_set() or self._assignment[1].get(pull.place) is not pull:
            return  # another thread's by now, or nobody's
        found = MirrorState(pull.origin, state, detail, pull.high_watermark)
        self._states.put(pull.origin.topic, pull.target, found, quiet=quiet)


def _look(asked: _Asked, answer: FetchedPartition) -> list[Run] | MillraceError:
    """The runs to append, or why there are none."""
    if answer.error:
        return []
    try:
        return list(runs_of(asked.recorded, asked.before, answer, asked.pull.rules))
    except MillraceError as error:
        return error


def _offset(recorded: Recorded) -> tuple[int, int] | None:
    """What tells two recorded positions of one log apart: a reset may go back to an offset."""
    return None if recorded is None else (recorded.cursor.next_offset, recorded.reset_at)
