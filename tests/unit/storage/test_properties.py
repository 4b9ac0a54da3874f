"""Random histories of a log against a simple model: a list of batches, and how much of each file is synced.

A power cut leaves each file at a random length not below its last fdatasync, with garbage behind it, and
may take files whose names were never synced. Whatever was visible must be there, and nothing else changes.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.config import LogConfig
from millrace.errors import OffsetOutOfRange, StorageError
from millrace.records import BatchHeader, split_batches
from millrace_broker.storage import landmarks, producer_state
from millrace_broker.storage.chain import walk
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.segment import sync_directory
from tests.unit.storage.logs import (
    ORIGIN,
    Appended,
    Clock,
    append,
    batch,
    consume,
    crash,
    crowded_batch,
    forget_readers,
    log_files,
    origin_batches,
    position,
    slice_bytes,
)

MODULES = ("partition_log", "recovery", "checkpoint", "producer_state")
SIZES = st.tuples(st.integers(1, 20), st.integers(0, 60))
"""Records of a batch, bytes of each value."""


@dataclass(frozen=True)
class Stored:
    """One data batch of the model; `ends` is where the append that brought it is complete."""

    base: int
    next_offset: int
    end: int
    complete_at: int


class Disk:
    """Data known to be on the disk: bytes per file, and names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.synced: dict[str, int] = {}
        self.named: set[str] = set()
        self.meanwhile: Callable[[], None] | None = None
        """Work that the loop does while the next sync waits for the disk."""

    def sync(self, fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        self.synced[name] = os.fstat(fd).st_size
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def sync_directory(self, directory: Path) -> None:
        sync_directory(directory)
        self.named = {path.name for path in log_files(self.directory)}

    def cut_power(self, chance: random.Random) -> int:
        """Lose what may be lost; return up to where the log is whole."""
        whole = None
        for path in log_files(self.directory):
            base, size, safe = int(path.stem), path.stat().st_size, self.synced.get(path.name, 0)
            if path.name not in self.named and chance.random() < 0.5:
                path.unlink()
                whole = base if whole is None else whole
                continue
            length = chance.choice([safe, size, chance.randint(safe, size)])
            os.truncate(path, length)
            if length < size and whole is None:
                whole = base + length
            garbage = (
                b""
                if length < size and chance.random() < 0.5
                else chance.randbytes(chance.choice([0, 1, 80, 300]))
            )
            if size > safe or chance.random() < 0.3:
                with open(path, "ab") as file:
                    file.write(garbage)
        return 1 << 60 if whole is None else whole


class LogMachine(RuleBasedStateMachine):
    """A partition log, used and cut off in every order hypothesis can think of."""

    def __init__(self) -> None:
        super().__init__()
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="millrace-", dir=place))
        self.clock = Clock(time.time())  # files carry real times
        self.disk = Disk(self.directory)
        self.patches = ExitStack()
        for module in MODULES:
            target = f"millrace_broker.storage.{module}.sync_directory"
            self.patches.enter_context(mock.patch(target, self.disk.sync_directory))
        self.stored: list[Stored] = []
        self.sent: dict[int, list[tuple[int, int]]] = {}
        """Each idempotent producer's (sequence, base offset) of batches that are or were in the log."""
        self.visible = 0
        self.mark = 0
        self.end = 0

    def open(self) -> None:
        self.log = PartitionLog(self.directory, self.config, self.clock, self.disk.sync)

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
        mirrored=st.booleans(),
        span=st.sampled_from([1, 500, 1 << 20]),
        few_producers=st.sampled_from([0, 100]),
        read_again=st.sampled_from([1, 1000, 1 << 20]),
    )
    def begin(
        self, segment_bytes: int, mirrored: bool, span: int, few_producers: int, read_again: int
    ) -> None:
        self.config = LogConfig(segment_bytes=segment_bytes, retention_ms=1_000_000)
        self.mirrored = mirrored
        for module, name, value in [
            (landmarks, "SPAN_BYTES", span),
            (producer_state, "FEW_PRODUCERS", few_producers),
            (producer_state, "MAX_REPLAY_BYTES", read_again),
        ]:
            self.patches.enter_context(mock.patch.object(module, name, value))
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            crash(self.log)
        self.patches.close()
        shutil.rmtree(self.directory)

    # What is done to the log

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6), crowded=st.integers(0, 8))
    def append(self, sizes: list[tuple[int, int]], crowded: int) -> None:
        if self.mirrored:
            return self.mirror([records for records, _ in sizes])
        batches = [batch(records, b"v" * size) for records, size in sizes]
        if crowded < len(batches):
            batches[crowded] = crowded_batch(200)
        assert self.place(batches) == len(batches)
        assert self.log.unflushed_messages > 0
        return None

    def place(self, batches: list[bytearray]) -> int:
        """Append batches and note those that are in the log; return how many."""
        before = len(self.stored)
        for each, result in zip(batches, append(self.log, *batches), strict=True):
            header = BatchHeader.parse(each)
            assert header is not None
            if isinstance(result, Appended):
                assert header.base_offset == result.base_offset >= self.end
                self.stored.append(Stored(result.base_offset, header.next_offset, result.end, result.end))
                self.end = max(result.end, header.next_offset)
        return len(self.stored) - before

    @rule(producer=st.integers(1, 3))
    def send(self, producer: int) -> None:
        """An idempotent producer sends its next batch."""
        if not self.mirrored:
            sent = self.sent.setdefault(producer, [])
            sequence = sent[-1][0] + 1 if sent else 0
            assert self.place([batch(1, b"i", producer=producer, sequence=sequence)]) == 1
            sent.append((sequence, self.stored[-1].base))

    @rule(producer=st.integers(1, 3), back=st.integers(1, 5))
    def send_again(self, producer: int, back: int) -> None:
        """It sends one of its last five again."""
        sent = self.sent.get(producer, [])
        if back <= len(sent):
            sequence, base = sent[-back]
            (result,) = append(self.log, batch(1, b"i", producer=producer, sequence=sequence))
            assert isinstance(result, Appended)
            assert (result.base_offset, result.duplicate) == (base, True)

    def mirror(self, counts: list[int]) -> None:
        recorded = self.log.mirror_position
        start = 0 if recorded is None else recorded.cursor.next_offset
        moved = position(
            start + sum(counts),
            batches=len(counts) + (recorded.batches if recorded else 0),
            records=sum(counts) + (recorded.records if recorded else 0),
        )
        batches = origin_batches(counts, start)
        end = self.log.append_mirrored(ORIGIN, None if recorded is None else start, batches, moved)
        for each in batches:
            header = BatchHeader.parse(each)
            assert header is not None
            stored_end = header.base_offset + header.size
            self.stored.append(Stored(header.base_offset, header.next_offset, stored_end, end))
        self.end = end

    @rule(checkpoint=st.booleans())
    def flush(self, checkpoint: bool = True) -> None:
        self.log.publish(self.log.flush())
        if checkpoint:
            self.log.write_due_checkpoint()
        self.visible = len(self.stored)
        self.mark = self.log.high_watermark
        assert self.log.visible_end == self.log.end
        assert self.log.unflushed_messages == 0

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def append_during_a_flush(self, sizes: list[tuple[int, int]]) -> None:
        before = len(self.stored)
        self.disk.meanwhile = lambda: self.append(sizes, 99)
        flushed = self.log.flush()
        self.log.write_due_checkpoint()
        if self.disk.meanwhile is not None:  # there was nothing to sync
            self.disk.meanwhile = None
            self.append(sizes, 99)
        self.log.publish(flushed)
        self.visible = before
        self.mark = self.log.high_watermark

    @rule(seconds=st.sampled_from([1, 10, 2000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def retention(self) -> None:
        self.log.apply_retention()
        start = int(log_files(self.directory)[0].stem)
        gone = sum(each.base < start for each in self.stored)
        assert gone <= self.visible
        del self.stored[:gone]
        self.visible -= gone

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.open()
        self.visible = len(self.stored)
        self.mark = max([self.mark, *(each.next_offset for each in self.stored[-1:])])

    @rule()
    def kill(self) -> None:
        crash(self.log)
        self.open()
        self.visible = len(self.stored)
        self.mark = max([self.mark, *(each.next_offset for each in self.stored[-1:])])
        self.end = self.log.end

    @rule(blocks=st.integers(1, 4), room=st.integers(0, 400))
    def the_disk_is_full(self, blocks: int, room: int) -> None:
        """The files take only `room` more bytes, and no checkpoint can be written."""
        full = OSError(errno.ENOSPC, "No space left on device")

        def writev(fd: int, buffers: list[bytes]) -> int:
            nonlocal room
            if room == 0:
                raise full
            written = os.write(fd, b"".join(map(bytes, buffers))[:room])
            room -= written
            return written

        with (
            mock.patch.object(os, "writev", writev),
            mock.patch.object(Checkpoint, "write", side_effect=full),
        ):
            if self.mirrored:
                with suppress(StorageError):
                    self.mirror([1, 2])
            else:
                self.place([batch(2, b"v" * 60) for _ in range(blocks)])
            self.flush()
            self.retention()

    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        crash(self.log)
        whole = self.disk.cut_power(random.Random(seed))
        kept = [each for each in self.stored if each.complete_at <= whole]
        assert len(kept) >= self.visible, "the test itself cut what was visible"
        lost = {each.base for each in self.stored} - {each.base for each in kept}
        for producer, sent in self.sent.items():
            self.sent[producer] = [item for item in sent if item[1] not in lost]
        self.stored = kept
        self.open()
        self.visible = len(self.stored)
        self.mark = max([self.mark, *(each.next_offset for each in kept[-1:])])
        self.end = self.log.end

    # What must hold

    @invariant()
    def the_high_watermark_is_the_last_visible_record_plus_one(self) -> None:
        if hasattr(self, "log"):
            assert self.log.high_watermark == self.mark
            assert self.log.log_start_offset <= self.mark

    @precondition(lambda self: hasattr(self, "log"))
    @rule(place=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 1 << 20]), forget=st.booleans())
    def read_anywhere(self, place: float, max_bytes: int, forget: bool) -> None:
        if forget:
            forget_readers(self.log)
        offset = int(place * (self.log.end + 20))
        visible = self.stored[: self.visible]
        if offset >= self.mark:
            if offset > self.log.end:
                with pytest.raises(OffsetOutOfRange):
                    self.log.read(offset, max_bytes)
            else:
                assert self.log.read(offset, max_bytes) is None
            return
        wanted = next((each for each in visible if each.next_offset > offset), None)
        try:
            found = slice_bytes(self.log.read(offset, max_bytes))
        except OffsetOutOfRange:
            assert offset < self.log.log_start_offset
            return
        served = [header for header, _ in split_batches(found)]
        assert served, "at least one whole batch"
        first_data = next((header for header in served if not header.is_control), None)
        assert wanted is not None
        if first_data is not None:
            assert first_data.base_offset == wanted.base
        assert served[0].base_offset <= wanted.base
        assert len(found) <= max(max_bytes, served[0].size)

    @precondition(lambda self: hasattr(self, "log"))
    @rule(max_bytes=st.sampled_from([1, 500, 1 << 20]))
    def consume_everything(self, max_bytes: int) -> None:
        found = [(header.base_offset, header.next_offset) for header in self.read_all(max_bytes)]
        assert found == [(each.base, each.next_offset) for each in self.stored[: self.visible]]

    @precondition(lambda self: hasattr(self, "log"))
    @rule()
    def landmarks_stand_where_batches_begin(self) -> None:
        for segment in self.log.snapshot[1].segments:
            known = segment.known_landmarks().values
            newest, next_offset = -1, segment.base
            before: dict[int, tuple[int, int]] = {}
            reader = segment.open_reader()
            for at, header in walk(reader, segment.base, segment.end):
                if header.base_offset == at:
                    before[at] = newest, next_offset
                    next_offset = header.next_offset
                if not header.is_control:
                    newest = max(newest, header.max_timestamp)
            positions = list(known[::3])
            assert positions == sorted(positions)
            assert segment.size == 0 or positions[0] == segment.base
            for at, newest, next_offset in zip(positions, known[1::3], known[2::3], strict=True):
                assert before[at][0] <= newest
                assert next_offset in (before[at][1], at)

    def read_all(self, max_bytes: int) -> Iterator[BatchHeader]:
        return consume(self.log, self.log.log_start_offset, max_bytes)


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
