"""A follower's log: copied from the leader's byte by byte, cut where both part, the same after any crash."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import CorruptMessage, MillraceError, OffsetOutOfRange, StorageError
from millrace_broker.storage import partition_log
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.copying import whole_entries
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.state import LogState
from tests.unit.storage.logs import (
    ORIGIN,
    Clock,
    PowerCut,
    append,
    appended,
    batch,
    checkpoint,
    consume,
    crash,
    crowded_batch,
    cut_short,
    flush,
    log_files,
    origin_batches,
    position,
)

ROUNDS = int(os.environ.get("MILLRACE_ROUNDS", "1")) * 25


def replica(directory: Path, clock: Clock | None = None, **settings: int | None) -> PartitionLog:
    config = LogConfig(segment_bytes=4096, **settings)  # type: ignore[arg-type]
    return PartitionLog(directory, config, clock or Clock(), is_replica=True)


def fetch(leader: PartitionLog, follower: PartitionLog, max_bytes: int = 1 << 20, epoch: int = 99) -> int:
    """Copy once, as a follower does; how many bytes it took."""
    segment, found = leader.read_raw(follower.end, max_bytes)
    if found is None:
        return 0
    data = memoryview(bytearray(os.pread(found.file.fileno(), found.length, found.position)))
    headers, size = whole_entries(data, follower.end, follower.epochs.last, epoch)
    assert size > 0
    follower.append_copied(headers, data[:size], segment)
    return size


def copy(leader: PartitionLog, follower: PartitionLog, rng: Random | None = None) -> None:
    while fetch(leader, follower, rng.randint(1, 3000) if rng else 1 << 20):
        pass


def content(log: PartitionLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log_files(log.directory) if path.stat().st_size}


def known(log: PartitionLog) -> tuple[Any, ...]:
    """Return a log's state, except the number of messages since it was opened."""
    producers = [(id_, state.epoch, [*state.batches]) for id_, state in log.active_producers()]
    return log.appended._replace(messages=0), log.epochs.starts, sorted(producers)


def commit(log: PartitionLog, to: PartitionLog | None = None) -> None:
    """Flush, and take all of it for committed."""
    log.publish((to or log).flush())
    log.write_due_checkpoint()


class Writer:
    """Appends what producers send, or what an origin of a mirror has."""

    def __init__(self, rng: Random, *, mirrored: bool) -> None:
        self._rng, self._mirrored = rng, mirrored
        self._sequences: dict[int, int] = {}

    def write(self, log: PartitionLog) -> None:
        count = self._rng.randint(1, 5)
        if self._mirrored:
            recorded = log.mirror_position
            first, batches, records = 0, 0, 0
            if recorded is not None:
                first, batches, records = recorded.cursor.next_offset, recorded.batches, recorded.records
            end = position(first + count, batches=batches + 1, records=records + count)
            log.append_mirrored(ORIGIN, first if recorded else None, origin_batches([count], first), end)
        elif self._rng.random() < 0.2:
            appended(log, crowded_batch(self._rng.randint(100, 900)))
        elif self._rng.random() < 0.5:
            producer = self._rng.randint(1, 3)
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
            appended(log, batch(count, producer=producer, sequence=sequence))
        else:
            appended(log, batch(count, b"x" * self._rng.randint(1, 400)))


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_copy_has_the_leaders_files_and_knows_what_it_knows(tmp_path: Path, *, mirrored: bool) -> None:
    for seed in range(ROUNDS):
        rng = Random(seed)
        leader, follower = replica(tmp_path / f"{seed}-a"), replica(tmp_path / f"{seed}-b")
        writer = Writer(rng, mirrored=mirrored)
        for epoch in range(1, 4):
            leader.lead(epoch)
            for _ in range(rng.randint(0, 6)):
                writer.write(leader)
                if rng.random() < 0.3:
                    fetch(leader, follower, rng.randint(1, 2000))
        copy(leader, follower, rng)
        assert content(follower) == content(leader)
        assert known(follower) == known(leader)
        assert follower.whole_end == follower.end
        for log in (leader, follower):
            crash(log)


def test_a_copy_notes_facts_and_landmarks_as_its_leader_does(tmp_path: Path) -> None:
    config = LogConfig()
    leader = PartitionLog(tmp_path / "a", config, Clock())
    follower = PartitionLog(tmp_path / "b", config, Clock(), is_replica=True)
    for epoch, sequence in ((1, 0), (2, 1)):
        leader.lead(epoch)
        small = [batch(2, timestamp=number) for number in range(3000)]
        others = [batch(1, producer=7, sequence=sequence, timestamp=9000 * epoch), crowded_batch(500)]
        appended(leader, *small, *others, batch(3, timestamp=5000))
    copy(leader, follower, Random(1))
    (theirs,), (ours,) = leader.snapshot[1].segments, follower.snapshot[1].segments
    assert theirs.landmarks is not None
    assert len(theirs.landmarks.values) == 6, "the second landmark is in the middle of an append"
    assert (ours.facts, ours.landmarks) == (theirs.facts, theirs.landmarks)
    assert known(follower) == known(leader)
    assert follower.counts == leader.counts


@pytest.mark.parametrize("mirrored", [False, True])
def test_after_any_cut_and_crash_a_copy_goes_on_to_the_same_log(tmp_path: Path, *, mirrored: bool) -> None:
    for seed in range(ROUNDS):
        rng = Random(seed)
        first, second = replica(tmp_path / f"{seed}-a"), replica(tmp_path / f"{seed}-b")
        writer = Writer(rng, mirrored=mirrored)
        first.lead(1)
        for _ in range(rng.randint(0, 5)):
            writer.write(first)
        copy(first, second, rng)
        commit(second)
        committed = second.committed
        first.publish(first.flush())
        for _ in range(rng.randint(0, 5)):
            writer.write(first)  # the second may never hear of it
        if rng.random() < 0.5:
            fetch(first, second, rng.randint(1, 2000))
        if rng.random() < 0.5:
            second.flush()
            checkpoint(second)
        if rng.random() < 0.5:
            second = replica(crash(second))
            assert second.committed <= committed
        second.cut(second.whole_end)
        second.lead(2)
        first.flush()
        checkpoint(first)
        writer = Writer(rng, mirrored=mirrored)
        for _ in range(rng.randint(0, 5)):
            appended(second, batch()) if not mirrored else writer.write(second)
        # Now the second leads, and the first cuts where both part.
        while True:
            last = first.epochs.last
            here = second.epochs.end_of(last, second.end)
            if last == -1 or (here.epoch == last and first.end <= here.end):
                break
            own = first.epochs.end_of(here.epoch, first.end)
            first.cut(max(0, min(own.end, here.end)))
        assert first.committed == committed
        copy(second, first, rng)
        assert content(first) == content(second)
        assert known(first)[:2] == known(second)[:2]
        if rng.random() < 0.5:
            first = replica(crash(first))
            assert known(first)[:2] == known(second)[:2]
        first.publish(first.flush())
        assert sum(header.records_count for header in consume(first, 0)) == sum(
            header.records_count for header in _all(second)
        )
        for log in (first, second):
            crash(log)


def _all(log: PartitionLog) -> Any:
    log.publish(log.flush())
    return consume(log, 0)


def test_a_replica_shows_after_its_start_what_it_knew_to_be_committed(tmp_path: Path) -> None:
    log = replica(tmp_path)
    log.lead(1)
    appended(log, batch())
    commit(log)
    committed = log.committed
    appended(log, batch())
    log.flush()
    log.close()
    again = replica(tmp_path)
    assert (again.committed, again.end, again.flushed) == (committed, 2 * committed, 2 * committed)
    again.close()


@pytest.mark.parametrize("end", ["close", "kill", "retention"])
def test_the_first_part_of_an_append_is_no_whole_one_after_a_restart(tmp_path: Path, end: str) -> None:
    clock = Clock()
    leader, follower = replica(tmp_path / "a"), replica(tmp_path / "b", clock)
    leader.lead(1)
    leader.append_mirrored(ORIGIN, None, origin_batches([1]), position(1, batches=1, records=1))
    copy(leader, follower)
    commit(follower)
    whole = follower.end
    leader.append_mirrored(ORIGIN, 1, origin_batches([2, 3], 1), position(6, batches=3, records=6))
    fetch(leader, follower, 100)
    assert follower.whole_end == whole < follower.end
    clock.now += 60
    follower.flush()
    if end == "close":
        follower.close()
    elif end == "kill":
        follower.write_due_checkpoint()
    else:
        follower.apply_retention(0)
    again = replica(crash(follower))
    assert again.whole_end == whole
    if again.whole_end < again.end:  # as before an election
        again.cut(again.whole_end)
    again.lead(2)
    again.append_mirrored(ORIGIN, 1, origin_batches([2, 3], 1), position(6, batches=3, records=6))
    assert [header.records_count for header in _all(again)] == [1, 2, 3]
    for log in (leader, again):
        crash(log)


def test_what_is_committed_is_never_cut(tmp_path: Path) -> None:
    log = replica(tmp_path)
    appended(log, batch(), batch())
    commit(log)
    with pytest.raises(MillraceError, match="committed"):
        log.cut(log.end // 2)
    assert log.committed == log.end
    log.close()


@pytest.mark.parametrize("anew", [None, "behind the end", "inside", "at the start"])
def test_a_cut_that_a_crash_stops_anywhere_loses_nothing_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, anew: str | None
) -> None:
    for after in range(100):
        log = replica(tmp_path / str(after))
        log.lead(1)
        for _ in range(3 if anew != "at the start" else 0):
            appended(log, batch(3, b"x" * 1000))
        commit(log)
        committed, kept = log.committed, content(log)
        for epoch in (1, 2):
            log.lead(epoch)
            for _ in range(3):
                appended(log, batch(3, b"y" * 1000))
        whole, end = content(log), log.end
        log.flush()
        checkpoint(log)
        begin = {"behind the end": log.end, "inside": committed, "at the start": 0}.get(str(anew))
        with monkeypatch.context() as patched:
            counted = cut_short(after)
            names = (
                (os, "fsync"),
                (Path, "replace"),
                (Path, "unlink"),
                (Path, "write_bytes"),
                (os, "truncate"),
            )
            for owner, name in names:
                patched.setattr(owner, name, counted(getattr(owner, name)))
            try:
                log.cut(committed) if begin is None else log.start_over_at(begin)
                done = True
            except PowerCut:
                done = False
        again = replica(crash(log))
        if begin is not None:
            assert (again.start, again.end) == (begin, begin) or (not done and again.end in (committed, end))
        else:
            assert again.committed == committed
            assert content(again).items() <= whole.items() | kept.items()
            assert again.end == committed or not done
        appended(again, batch())
        crash(again)
        if done:
            return
    pytest.fail("it never ends")


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("how", ["cut", "begin anew"])
def test_a_cut_for_which_the_disk_has_no_room_has_changed_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log = replica(tmp_path)
    log.lead(1)
    appended(log, batch(1))
    commit(log)
    log.lead(2)
    appended(log, batch(1), batch(1))
    log.flush()
    checkpoint(log)
    before = known(log), content(log)
    change = partial(log.cut, log.committed) if how == "cut" else partial(log.start_over_at, log.committed)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", full_disk)
        with pytest.raises(StorageError, match="its checkpoint could not be written"):
            change()
    assert (known(log), content(log)) == before, "epochs too: a leader goes by them"
    assert log.refusal is None
    change()
    assert log.end == log.committed
    assert log.epochs.last == (1 if how == "cut" else -1)


def test_a_log_whose_recovery_fails_behind_a_cut_takes_nothing_more_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = replica(tmp_path)
    log.lead(1)
    appended(log, batch(1))
    commit(log)
    appended(log, batch(1))
    log.flush()
    with monkeypatch.context() as patched:
        patched.setattr(partition_log, "recover", full_disk)
        with pytest.raises(StorageError, match="cannot be used until a restart"):
            log.cut(log.committed)
    (refused,) = append(log, batch(1))
    assert isinstance(refused, StorageError)
    with pytest.raises(StorageError, match="until a restart"):
        log.flush()
    assert replica(crash(log)).end == log.committed


def test_a_checkpoint_that_a_cut_overtakes_claims_nothing_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = replica(tmp_path)
    log.lead(1)
    appended(log, batch(1))
    commit(log)
    appended(log, batch(1))
    log.flush()
    is_due = PartitionLog._checkpoint_is_due

    def overtaken(log: PartitionLog, state: LogState) -> bool:
        monkeypatch.setattr(PartitionLog, "_checkpoint_is_due", is_due)
        log.cut(log.committed)
        return True

    monkeypatch.setattr(PartitionLog, "_checkpoint_is_due", overtaken)
    log.write_due_checkpoint()
    log.lead(2)
    appended(log, batch(4, b"committed"), batch(4, b"committed"))
    commit(log)
    again = replica(crash(log))
    assert again.end == log.committed


def test_a_copy_that_is_too_far_behind_begins_anew_where_the_leader_does(tmp_path: Path) -> None:
    clock = Clock()
    leader, follower = replica(tmp_path / "a", clock, retention_ms=1000), replica(tmp_path / "b", clock)
    leader.lead(1)
    appended(leader, batch(3, b"x" * 3000))
    copy(leader, follower)
    commit(follower)
    for _ in range(3):
        appended(leader, batch(3, b"y" * 3000))
    commit(leader)
    clock.now += 10
    leader.apply_retention()
    assert leader.start > follower.end
    appended(leader, batch())
    follower.start_over_at(leader.start)
    copy(leader, follower)
    assert content(follower) == content(leader)
    for again in (follower, replica(crash(follower))):
        assert again.start == leader.start
        assert again.end == leader.end
        assert again.epochs.end_of(1, again.end) == leader.epochs.end_of(1, leader.end)


def test_a_copy_drops_the_files_that_its_leader_has_dropped_and_no_others(tmp_path: Path) -> None:
    clock = Clock()
    leader = replica(tmp_path / "a", clock, retention_ms=1000)
    follower = replica(tmp_path / "b", clock, retention_ms=1)
    leader.lead(1)
    for _ in range(4):
        appended(leader, batch(3, b"x" * 1000))
    copy(leader, follower)
    for log in (leader, follower):
        commit(log)
    clock.now += 10
    follower.apply_retention(leader.start)
    assert content(follower) == content(leader)
    leader.apply_retention()
    appended(leader, batch())
    copy(leader, follower)
    follower.apply_retention(leader.start)
    assert content(follower) == content(leader)
    assert follower.start == leader.start > 0


@pytest.mark.parametrize("leads", [False, True])
def test_what_a_copy_has_not_flushed_its_retention_does_not_drop_though_it_is_committed(
    tmp_path: Path, *, leads: bool
) -> None:
    clock = Clock()
    leader = replica(tmp_path / "a", clock, retention_ms=1000)
    follower = replica(tmp_path / "b", clock, retention_ms=1000)
    leader.lead(1)
    for _ in range(4):
        appended(leader, batch(3, b"x" * 1000))
    commit(leader)
    copy(leader, follower)
    follower.publish(follower.whole)  # it catches up: what it gets was committed long ago
    clock.now += 10
    leader.apply_retention()
    if leads:
        follower.lead(2)
        follower.apply_retention()
    else:
        follower.apply_retention(leader.start)
    again = replica(crash(follower), clock, retention_ms=1000)
    assert again.end == leader.end
    appended(leader, batch())
    copy(leader, again)
    commit(again)
    again.apply_retention(leader.start)
    assert content(again) == content(leader)
    for log in (leader, again):
        crash(log)


def test_a_copy_that_could_not_take_in_what_it_wrote_writes_nothing_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    leader, follower = replica(tmp_path / "a"), replica(tmp_path / "b")
    leader.lead(1)
    appended(leader, batch(), batch())
    with monkeypatch.context() as patched:
        patched.setattr("millrace_broker.storage.recovery.Scan.note", no_memory)
        with pytest.raises(StorageError, match="until the broker restarts"):
            fetch(leader, follower, len(batch()))
    with pytest.raises(StorageError, match="until the broker restarts"):
        fetch(leader, follower)
    follower = replica(crash(follower))
    copy(leader, follower)
    assert content(follower) == content(leader)
    for log in (leader, follower):
        crash(log)


def test_a_position_below_the_start_is_out_of_range_and_no_slice(tmp_path: Path) -> None:
    """Retention may have deleted its segment between a follower's request and its answer."""
    leader = replica(tmp_path, retention_bytes=8192)
    leader.lead(1)
    while leader.start == 0:
        appended(leader, batch())
        flush(leader)
        leader.apply_retention()
    with pytest.raises(OffsetOutOfRange, match=f"before the log's start {leader.start}"):
        leader.read_raw(0, 1 << 20)
    assert leader.read_raw(leader.start, 1 << 20)[1] is not None
    crash(leader)


@pytest.mark.parametrize("at", range(61))
def test_a_damaged_byte_of_a_header_is_not_copied(tmp_path: Path, at: int) -> None:
    leader = replica(tmp_path)
    leader.lead(5)
    appended(leader, batch(), batch())
    _, found = leader.read_raw(0, 1 << 20)
    assert found is not None
    data = bytearray(os.pread(found.file.fileno(), found.length, found.position))
    data[at] ^= 0x80
    try:
        _, size = whole_entries(memoryview(data), 0, -1, 5)
    except CorruptMessage:
        return
    assert size == 0  # a length that reaches behind the end
    crash(leader)


def test_a_slice_ends_anywhere_and_only_whole_entries_are_taken(tmp_path: Path) -> None:
    leader = replica(tmp_path)
    leader.lead(1)
    appended(leader, batch(), crowded_batch(500))
    _, found = leader.read_raw(0, 1 << 20)
    assert found is not None
    data = memoryview(os.pread(found.file.fileno(), found.length, found.position))
    first = len(batch())
    for end in range(len(data) + 1):
        _, size = whole_entries(data[:end], 0, -1, 1)
        assert size == (len(data) if end == len(data) else first if end >= first else 0)
    crash(leader)
