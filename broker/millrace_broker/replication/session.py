"""The leader's side of a follower's connection: the follower's position in each partition, and its answers.

A session must be used on the event loop only. The broker provides logs, leaderships and requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from millrace.errors import BrokerError, ErrorCode, FencedLeaderEpoch, NotLeader, UnknownLeaderEpoch
from millrace.records.file_slice import FileSlice
from millrace.wire.replica import Copied, ReplicaFetchRequest, ReplicaPartition, Wanted
from millrace_broker.replication.leadership import Leadership
from millrace_broker.storage.sides import LoopSide


class Led(NamedTuple):
    """A partition that this broker leads."""

    leading: Leadership
    log: LoopSide


FindLed = Callable[[ReplicaPartition, int], Led]
"""Returns the partition that this broker leads in the follower's epoch; raises BrokerError otherwise."""


def check_epoch(leading: Leadership, known: int) -> None:
    """Refuse a follower whose leader epoch is not the current epoch."""
    if known < leading.epoch:
        raise FencedLeaderEpoch(f"epoch {known} is over: {leading.epoch} is led here")
    if known > leading.epoch:
        raise UnknownLeaderEpoch(f"epoch {known} is newer than {leading.epoch}, which was led here")
    if leading.is_outrun:
        raise NotLeader(f"the leader of epoch {known} resigns, as another replica has a longer log")


@dataclass(slots=True)
class _Place:
    wanted: Wanted
    sent_starts: tuple[int, int] = (-1, -1)
    """Result of `_starts` for the leader's log, as last sent to the follower."""
    sent_committed: int = -1
    is_answered: bool = False
    """True between an answer and the follower's next position."""


class ReplicaSession:
    """One follower's connection."""

    def __init__(self, follower: int, directory: str, find: FindLed) -> None:
        self.follower, self.directory = follower, directory
        self._find = find
        self._places: dict[ReplicaPartition, _Place] = {}
        self._changed: dict[ReplicaPartition, None] = {}
        """Partitions that may have changed since the last answer to the follower, longest waiting first."""

    def update(self, request: ReplicaFetchRequest, now: float) -> bool:
        """Store the follower's positions.

        Return True if records became committed, or a leader must resign.
        """
        if request.starts_over:
            self._places, self._changed = {}, {}
        for partition in request.forgotten:
            self._changed.pop(partition, None)
            if (place := self._places.pop(partition, None)) is not None:
                self._end(place, now)
        grown = False
        for wanted in request.wanted:
            place = self._places.setdefault(wanted.partition, _Place(wanted))
            place.wanted, place.is_answered = wanted, False
            self._changed[wanted.partition] = None
            try:
                leading = self._led(wanted).leading
            except BrokerError:
                continue  # the answer has the error
            leading.connected(self.follower, self.directory, wanted.position, wanted.last_epoch)
            grown |= leading.is_outrun
            if wanted.flushed >= 0:
                grown |= leading.reported(self.follower, self.directory, wanted.flushed)
        return grown

    def changed(self, partition: ReplicaPartition) -> None:
        """Note that the partition has grown, or is no longer led here."""
        place = self._places.get(partition)
        if place is not None and not place.is_answered:
            self._changed[partition] = None

    def closed(self, now: float) -> None:
        """Note that the connection has ended."""
        for place in self._places.values():
            self._end(place, now)

    def _end(self, place: _Place, now: float) -> None:
        with suppress(BrokerError):
            self._led(place.wanted).leading.closed(self.follower, self.directory, now)

    def answer(self, max_bytes: int, *, final: bool = False) -> list[Copied]:
        """Return the changed partitions, with at most `max_bytes` of records after the first; empty if none.

        A partition in the answer is left out until the follower sends its position again. With `final` the
        follower has waited long enough: the answer also has changes that are too small for a separate answer.
        """
        copied: list[Copied] = []
        room = max_bytes
        for partition in list(self._changed):
            if room <= 0:
                break
            del self._changed[partition]
            one = self._answer(self._places[partition], room)
            if one is not None:
                copied.append(one)
                if isinstance(one.records, FileSlice):
                    room -= one.records.length
        if final:
            places = [place for place in self._places.values() if not place.is_answered]
            copied += [one for place in places if (one := self._news(place)) is not None]
        for one in copied:
            if (answered := self._places.get(one.partition)) is not None:
                answered.is_answered = True
        return copied

    def _led(self, wanted: Wanted) -> Led:
        led = self._find(wanted.partition, wanted.epoch)
        check_epoch(led.leading, wanted.epoch)
        return led

    def _answer(self, place: _Place, room: int) -> Copied | None:
        wanted = place.wanted
        try:
            leading, log = self._led(wanted)
        except BrokerError as error:
            del self._places[
                wanted.partition
            ]  # otherwise every partition that a follower names would be remembered
            return Copied(wanted.partition, error.code)
        try:
            diverging = leading.check(wanted.position, wanted.last_epoch)
            if diverging is not None:
                return Copied(
                    wanted.partition,
                    ErrorCode.NONE,
                    committed=leading.committed,
                    diverging_epoch=diverging.epoch,
                    diverging_end=diverging.end,
                    log_start=log.start,
                    start_offset=log.high_watermark if log.start == log.end else log.snapshot[1].start_offset,
                )
            segment, records = log.read_raw(wanted.position, room)
        except BrokerError as error:
            return Copied(wanted.partition, error.code)
        if records is None and wanted.flushed >= 0:
            return None
        return _copied(place, leading, log)._replace(segment=segment, records=records)

    def _news(self, place: _Place) -> Copied | None:
        """Return the changed high watermark or log start, if nothing was appended since the last answer."""
        wanted = place.wanted
        try:
            leading, log = self._led(wanted)
        except BrokerError:
            return None
        sent = place.sent_starts, place.sent_committed
        if wanted.flushed < 0 or sent == (_starts(log), leading.committed):
            return None
        return _copied(place, leading, log)


def _copied(place: _Place, leading: Leadership, log: LoopSide) -> Copied:
    starts, committed = _starts(log), leading.committed
    place.sent_starts, place.sent_committed = starts, committed
    return Copied(place.wanted.partition, ErrorCode.NONE, committed, *starts)


def _starts(log: LoopSide) -> tuple[int, int]:
    """Return the start of the log, and the offset before which it has given up its records.

    The offset may be lower: a reader of all records before the start continues from there.
    """
    return log.start, log.snapshot[1].start_offset
