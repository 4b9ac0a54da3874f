"""The short ways of appends and copies against the long ones, for random histories: no trace may differ."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.config import LogConfig
from millrace.errors import CorruptMessage
from millrace.records import HEADER, BatchHeader, Message, build_batch, control_batch, filler_after
from millrace.records.compression import Buffer, Codec
from millrace_broker.storage import landmarks, segment
from millrace_broker.storage.copying import whole_entries
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import EXPIRY_S
from millrace_broker.storage.recovery import Scan
from millrace_broker.storage.refused import MAX_SEQUENCE
from millrace_broker.storage.segment import Segment
from tests.unit.storage.logs import (
    ORIGIN,
    PRINCIPAL,
    Clock,
    batch,
    crash,
    crowded_batch,
    flush,
    log_files,
    position,
)

EXAMPLES = int(os.environ.get("MILLRACE_ROUNDS", "1")) * 60
KINDS = ["plain", "small", "large", "packed"] * 6 + [
    "idempotent",
    "idempotent",
    "crowded",
    "absurd",
    "locked",
]
IDEMPOTENT_KINDS = ["idempotent"] * 12 + ["plain", "crowded"]
FAULTS = [None] * 8 + ["short", "short", "full", "full"]
"""Usual faults. A file that cannot be cut ends a history: its log takes nothing more."""


class Writes:
    """The system calls that write a log, with the faults of a disk. Both logs meet the same faults."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.room = 0
        self.rng = random.Random(0)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(map(bytes, buffers))
        if self.fault == "short":
            return os.write(fd, data[: self.rng.randint(1, len(data))]) if data else 0
        if self.fault is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: self.room]
            self.room -= len(data)
        return os.write(fd, data)

    def ftruncate(self, fd: int, size: int) -> None:
        if self.fault == "no cut":
            raise OSError(errno.EIO, "Input/output error")
        os.truncate(fd, size)

    @contextmanager
    def with_fault(self, fault: str | None, room: int) -> Iterator[None]:
        self.fault, self.room, self.rng = fault, room, random.Random(room)
        yield
        self.fault = None


class StagedLog(PartitionLog):
    """A log without the short ways."""

    def _append_plain(self, *arguments: object) -> Sequence[int]:
        return ()


def produced(rng: random.Random, sequences: dict[int, int], kinds: Sequence[str] = KINDS) -> Buffer:
    kind, count, timestamp = rng.choice(kinds), rng.randint(1, 5), rng.randint(-1, 2000)
    match kind:
        case "idempotent":
            producer = rng.randint(1, 3)
            start = rng.choice([0, 0, MAX_SEQUENCE - 4])
            sequence = rng.choice([sequences.get(producer, start)] * 12 + [0, 7])
            sequences[producer] = (sequence + count) & MAX_SEQUENCE
            return batch(count, producer=producer, sequence=sequence, epoch=rng.choice([0] * 60 + [1]))
        case "crowded":
            return crowded_batch(rng.randint(90, 900), timestamp=timestamp)
        case "absurd":
            return crowded_batch(1 << 20)
        case "locked":
            return bytes(batch(count, timestamp=timestamp))
        case "packed":
            messages = [Message(timestamp, None, b"0" * 300) for _ in range(count)]
            return bytearray(build_batch(messages, codec=Codec.ZSTD))
    size = {"small": 0, "large": rng.randint(900, 1500)}.get(kind, rng.randint(1, 300))
    return batch(count, b"x" * size, timestamp=timestamp)


def traces(log: PartitionLog) -> dict[str, Any]:
    """Everything that an append or a copy may change."""
    copying = log._copying
    return {
        "bytes": {path.name: path.read_bytes() for path in log_files(log.directory)},
        "states": (log._appended, log._flushed, log._flushed_whole, log._visible),
        "copying": copying and (copying.state, copying.kept, copying.unfilled),
        "epochs": (log.epochs.starts, log.epochs.last, log._epoch),
        "segments": [
            (
                one.base,
                one.size,
                one.last_append,
                one.facts,
                marks and (marks.values, marks.room, marks.next_offset),
            )
            for one in log.snapshot[1].segments
            for marks in [one.landmarks]
        ],
        "producers": (log.active_producers(), log._producers._newest_end),
        "places": [
            {name: [(id_ if isinstance(id_, int) else id_[1], at) for id_, at in ids.items()]}
            for places in (log._producers._places, log._producers._limit.places)
            for name, ids in [("all", places._all), *places._of.items()]
        ],
        "refusals": (log._refused_at, shown(log, log.refusal), shown(log, log._producers._refused.first)),
        "start": (log.log_start_offset, log.counts),
    }


def assert_alike(short: PartitionLog, long: PartitionLog) -> None:
    ours, theirs = traces(short), traces(long)
    for name in ours:
        assert ours[name] == theirs[name], name


def shown(log: PartitionLog, found: object) -> str:
    return repr(found).replace(str(log.directory), "")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes()
    calls = {"writev": writes.writev, "ftruncate": writes.ftruncate}
    monkeypatch.setattr(segment, "os", SimpleNamespace(**vars(os) | calls))
    return writes


def appended_to(
    logs: Sequence[PartitionLog],
    writes: Writes,
    rng: random.Random,
    sequences: dict[int, int],
    kinds: Sequence[str],
    strangers: float,
) -> list[str]:
    """Append the same batches, with the same fault of the disk, to each log; return the outcomes.

    `strangers` is the share of the batches that another principal sends.
    """
    before = dict(sequences)
    batches = [produced(rng, sequences, kinds) for _ in range(rng.choice([0, 1, 1, 2, 3, 8]))]
    if batches and rng.random() < 0.1:
        batches.append(batches[-1])
    principals = ["User:other" if rng.random() < strangers else PRINCIPAL for _ in batches]
    fault = "no cut" if rng.random() < 0.02 else rng.choice(FAULTS)
    room = rng.randint(0, 600)
    outcomes = []
    for log in logs:
        copies = [one if isinstance(one, bytes) else bytearray(one) for one in batches]
        with writes.with_fault(fault, room):
            outcomes.append(shown(log, log.append(copies, principals)))
    if "StorageError" in outcomes[0]:  # the producers will send the same again
        sequences.clear()
        sequences.update(before)
    return outcomes


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_a_plain_append_leaves_what_a_staged_one_does(tmp_path: Path, writes: Writes, seed: int) -> None:
    rng, clock, sequences = random.Random(seed), Clock(), dict[int, int]()
    config = LogConfig(segment_bytes=rng.choice([700, 3000, 1 << 20]))
    with (
        mock.patch.object(landmarks, "SPAN_BYTES", rng.choice([1, 600, 1 << 20, 1 << 20])),
        mock.patch.object(segment, "WRITE_BYTES", rng.choice([100, 32 << 10])),
        mock.patch.object(segment, "IOV_MAX", rng.choice([2, 1024])),
    ):
        kinds = (PartitionLog, StagedLog)
        logs = [kind(tmp_path / kind.__name__, config, clock) for kind in kinds]
        batch_kinds, strangers = rng.choice([KINDS, IDEMPOTENT_KINDS]), rng.choice([0.0, 0.0, 0.3])
        for _ in range(30):
            clock.now += rng.choice([0, 0, 0.5, 1, 20, rng.choice([0] * 4 + [-2, -2, EXPIRY_S + 1])])
            step, epoch = rng.randint(0, 30), rng.randint(0, 5)
            for log in logs if step < 10 else ():
                if step < 5:
                    log.lead(epoch)
                elif step < 9:
                    flush(log)
                elif log.end == 0 and log.refusal is None:
                    log.append_mirrored(ORIGIN, None, [], position(5))
            if step >= 10:
                ours, theirs = appended_to(logs, writes, rng, sequences, batch_kinds, strangers)
                assert ours == theirs
            assert_alike(*logs)
        again = [kind(crash(log), config, clock) for kind, log in zip(kinds, logs, strict=True)]
        for one in again[0].snapshot[1].segments + again[1].snapshot[1].segments:
            one.last_append = 0  # of the file, and so by the machine's clock
        assert_alike(*again)
        for log in again:
            shutil.rmtree(crash(log))


def test_in_one_append_each_producer_is_its_own_principal_s(tmp_path: Path) -> None:
    logs = [kind(tmp_path / kind.__name__, LogConfig(), Clock()) for kind in (PartitionLog, StagedLog)]
    for sequence, principals in ((0, [PRINCIPAL, PRINCIPAL]), (1, [PRINCIPAL, "User:other"])):
        for log in logs:
            log.append([batch(producer=number, sequence=sequence) for number in (1, 2)], principals)
    assert_alike(*logs)
    for log in logs:
        log.close()


def batch_by_batch(self: Scan, segment: Segment, headers: Sequence[BatchHeader], data: memoryview) -> None:
    """Do what `Scan.note_all` does without its short way."""
    start = 0
    for header in headers:
        self.note(segment, header, data[start : start + header.size], self.state.end)
        start += header.size


def led(rng: random.Random) -> bytes:
    """The bytes of a leader's log: any batches, of rising epochs."""
    data, epoch, sequences = b"", rng.choice([-1, -1, 0, 3]), dict[int, int]()
    is_mirrored = rng.random() < 0.2
    for number in range(rng.randint(1, 30)):
        epoch += rng.choice([0] * 8 + [1, 2])
        if rng.random() < (0.4 if is_mirrored else 0.05):
            value = position(number).encode(len(data)) if is_mirrored else b"anything"
            data += control_batch(len(data), value, timestamp=3000, leader_epoch=epoch)
            continue
        made = produced(rng, sequences)
        header = BatchHeader.of(made)._replace(base_offset=len(data), partition_leader_epoch=epoch)
        if header.last_offset_delta > 10_000:
            continue
        stamped = HEADER.pack(*header) + made[HEADER.size :]
        data += stamped + (filler_after(header, timestamp=header.max_timestamp) or b"")
    return data


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_batches_that_are_counted_together_leave_what_each_by_itself_does(tmp_path: Path, seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    data, damaged = led(rng), rng.random() < 0.2
    pieces = [(rng.randint(1, 2000), rng.random() < 0.2, rng.random() < 0.8) for _ in range(100)]
    logs = []
    with mock.patch.object(landmarks, "SPAN_BYTES", rng.choice([1, 600, 1 << 20, 1 << 20])):
        for name, note_all in (("short", Scan.note_all), ("long", batch_by_batch)):
            log, at, segment = PartitionLog(tmp_path / name, LogConfig(), clock, is_replica=True), 0, 0
            logs.append(log)
            with mock.patch.object(Scan, "note_all", note_all):
                for length, rolls, is_writable in pieces:
                    part = bytearray(data[at : at + length])
                    if damaged and len(part) > 200:
                        part[random.Random(at).randrange(200)] ^= 1
                    whole = memoryview(part if is_writable else bytes(part))
                    with suppress(CorruptMessage):
                        headers, size = whole_entries(whole, at, log.epochs.last, 1000)
                        if size:
                            segment = at if rolls else segment
                            log.append_copied(headers, whole[:size], segment)
                            at += size
        assert_alike(*logs)
        assert data.startswith(b"".join(traces(logs[0])["bytes"].values())) or damaged
    for log in logs:
        shutil.rmtree(crash(log))
