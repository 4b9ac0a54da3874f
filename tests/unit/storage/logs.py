"""Helpers of the storage tests: batches with known content, a clock, and a reader like a client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from millrace.config import LogConfig
from millrace.errors import BrokerError
from millrace.records import HEADER, BatchHeader, Cursor, Message, batch_crc, build_batch, split_batches
from millrace.records.file_slice import FileSlice
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.reading import RecentPositions

ORIGIN = Origin("dc1", "PageView", UUID(int=7), 3)
PRINCIPAL = "User:web"


@dataclass
class Clock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def batch(
    records: int = 3,
    value: bytes = b"value",
    *,
    timestamp: int = 1000,
    producer: int = -1,
    sequence: int = -1,
    epoch: int = 0,
) -> bytearray:
    """A produced batch, ready to be stamped."""
    messages = [Message(timestamp + index, None, value) for index in range(records)]
    return bytearray(
        build_batch(
            messages,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
        )
    )


def crowded_batch(records: int, *, timestamp: int = 1000, packed: bytes = b"zstd would be here") -> bytearray:
    """A batch that states more records than it has bytes, as zstd makes them; only its header is real."""
    plain = bytes(batch(1, packed, timestamp=timestamp))
    header = BatchHeader.parse(plain)
    assert header is not None
    header = header._replace(last_offset_delta=records - 1, records_count=records)
    crowded = bytearray(HEADER.pack(*header) + plain[HEADER.size :])
    crowded[17:21] = batch_crc(crowded).to_bytes(4, "big")
    return crowded


def open_log(directory: Path, clock: Clock | None = None, **settings: int | None) -> PartitionLog:
    return PartitionLog(directory, LogConfig(**settings), clock or Clock())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Appended:
    """Position of a batch in the log; a duplicate has that of its first attempt."""

    base_offset: int
    duplicate: bool
    end: int


def append(
    log: PartitionLog, *batches: bytearray, principal: str = PRINCIPAL
) -> list[Appended | BrokerError]:
    end = log.end
    found: list[Appended | BrokerError] = []
    for each, base in zip(batches, log.append(batches, [principal] * len(batches)), strict=True):
        if isinstance(base, int):
            found.append(Appended(base, base < end, base + len(each)))
            end = max(end, base + len(each))
        else:
            found.append(base)
    return found


def appended(log: PartitionLog, *batches: bytearray, principal: str = PRINCIPAL) -> list[Appended]:
    results = append(log, *batches, principal=principal)
    assert all(isinstance(result, Appended) for result in results), results
    return [result for result in results if isinstance(result, Appended)]


def flush(log: PartitionLog) -> bool:
    """Flush as a broker does: what is flushed is published, then the checkpoint is written if it is due."""
    published = log.publish(log.flush())
    log.write_due_checkpoint()
    return published


def checkpoint(log: PartitionLog) -> None:
    """Write the checkpoint now, not only every few seconds."""
    with mock.patch("millrace_broker.storage.partition_log.CHECKPOINT_INTERVAL_S", 0):
        log.write_due_checkpoint()


def forget_readers(log: PartitionLog) -> None:
    """Forget where readers go on, as a restart does."""
    log._reader.recent = RecentPositions()


def slice_bytes(found: FileSlice | None) -> bytes:
    assert found is not None
    return os.pread(found.file.fileno(), found.length, found.position)


def batches_at(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[BatchHeader]:
    """Headers of the whole batches that a fetch from `offset` gives, CRCs checked."""
    return [header for header, _ in split_batches(slice_bytes(log.read(offset, max_bytes)))]


def consume(log: PartitionLog, offset: int, max_bytes: int = 500) -> Iterator[BatchHeader]:
    """Data batches as a consumer meets them that starts at `offset` and ends at the high watermark."""
    while (found := log.read(offset, max_bytes)) is not None:
        before = offset
        for header, _ in split_batches(slice_bytes(found)):
            if not header.is_control and header.next_offset > offset:
                yield header
            offset = max(offset, header.next_offset)
        assert offset > before, f"a fetch from {before} brought nothing"
    assert offset == log.high_watermark, f"the reader ends at {offset}, the log at {log.high_watermark}"


def crash(log: PartitionLog) -> Path:
    """Leave the log as a killed process does: nothing written, descriptors closed."""
    log._shut("crashed")
    return log.directory


class PowerCut(BaseException):
    """The process ends here."""


def cut_short(after: int) -> Any:
    """A stand-in for what a log asks of the file system: it stops at the call of that number."""
    calls = [0]

    def counted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] > after:
                raise PowerCut
            return real(*args, **options)

        return call

    return counted


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def position(
    next_offset: int,
    *,
    start: int = 0,
    batches: int = 0,
    records: int = 0,
    dropped: int = 0,
    next_base: int | None = None,
    origin: Origin = ORIGIN,
) -> MirrorPosition:
    return MirrorPosition(origin, start, Cursor(next_offset, next_base), batches, records, dropped)


def origin_batches(counts: Sequence[int], base: int = 0) -> list[bytearray]:
    """Batches as a Kafka origin serves them: consecutive offsets from `base`."""
    found = []
    for count in counts:
        stamped = batch(count)
        stamped[:8] = base.to_bytes(8, "big")
        base += count
        found.append(stamped)
    return found
