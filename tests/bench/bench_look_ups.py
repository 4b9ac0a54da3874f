"""Costs of a look-up by offset or by time in one segment, without and with forged batches in payloads.

    python -m tests.bench.bench_look_ups [--megabytes 1024] [--look-ups 1000] [--directory DIR] [--page]

Prints a table, and with --page puts it into docs/benchmarks.md. What is measured stands in `TEXT`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from millrace.config import LogConfig
from millrace.records import HEADER_BYTES, Message, batch_crc, build_batch
from millrace_broker.storage.landmarks import Landmarks
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.reading import RecentPositions
from tests.bench.halves import PAGE, write_half

TEXT = """# Look-ups in one segment

CPU milliseconds of one look-up in a segment of single messages of 200 bytes. Each look-up is of a random
place and uses nothing that an earlier look-up found. A forged batch is a whole batch in a message's value
that states exactly the position at which it is in the file. The last row of each segment is the work that a
thread does once for a segment without landmarks: after an upgrade, or when their file was lost.

- Run: `python -m tests.bench.bench_look_ups --page`, {day}, {look_ups:,} look-ups of each kind

| MiB | batches | forged batches | look-up by | median | 99th percentile | most |
| ---: | ---: | --- | --- | ---: | ---: | ---: |
{rows}
"""
MB = 1 << 20
PER_APPEND = 4000
FORGED_EVERY = 100


def forged(position: int, inner: bytes, timestamp: int) -> bytearray:
    """A message for `position` that holds a batch which claims to stand where it does."""
    outer = bytearray(build_batch([Message(timestamp, None, inner)]))
    at = outer.index(inner[HEADER_BYTES - 40 :]) - (HEADER_BYTES - 40)
    outer[at : at + 8] = (position + at).to_bytes(8, "big")
    outer[17:21] = batch_crc(outer).to_bytes(4, "big")
    return outer


def fill(log: PartitionLog, total: int, *, with_forgeries: bool) -> int:
    """Append single messages, one a millisecond, up to `total` bytes; return how many."""
    plain = build_batch([Message(0, None, b"x" * 200)])
    count = 0
    while log.end < total:
        batches, position = [], log.end
        for _ in range(PER_APPEND):
            if with_forgeries and count % FORGED_EVERY == 0:
                batch = forged(position, plain, count)
            else:
                batch = bytearray(plain)
                batch[27:43] = count.to_bytes(8, "big") * 2
                batch[17:21] = batch_crc(batch).to_bytes(4, "big")
            batches.append(batch)
            position += len(batch)
            count += 1
        log.append(batches, ["User:bench"] * len(batches))
    log.publish(log.flush())
    return count


def measured(look_up: Callable[[int], object], places: list[int]) -> str:
    """Median, 99th percentile and most CPU milliseconds of one look-up, as cells of a table."""
    costs = []
    for place in places:
        began = time.thread_time()
        look_up(place)
        costs.append((time.thread_time() - began) * 1000)
    costs.sort()
    chosen = (statistics.median(costs), costs[len(costs) * 99 // 100], costs[-1])
    return " | ".join(f"{cost:.2f}" for cost in chosen)


def measure(directory: Path, total: int, look_ups: int, *, with_forgeries: bool) -> list[str]:
    """The rows of one segment."""
    config = LogConfig(segment_bytes=2 * total)
    log = PartitionLog(directory, config, time.time)
    count = fill(log, total, with_forgeries=with_forgeries)
    log.close()
    log = PartitionLog(directory, config, time.time)
    chance = random.Random(1)

    def by_offset(offset: int) -> None:
        log._reader.recent = RecentPositions()
        assert log.read(offset, 1) is not None

    def by_time(timestamp: int) -> None:
        found = log.offset_for_timestamp(timestamp)
        assert found is not None
        assert found[1] == timestamp

    segment = f"{log.end / MB:,.0f} | {count:,} | {'every hundredth' if with_forgeries else 'none'}"
    offsets = [chance.randrange(log.end) for _ in range(look_ups)]
    times = [chance.randrange(count) for _ in range(look_ups)]
    rows = [
        f"| {segment} | offset | {measured(by_offset, offsets)} |",
        f"| {segment} | time | {measured(by_time, times)} |",
    ]
    first = log.snapshot[1].segments[0]
    first.landmarks = Landmarks()
    began = time.process_time()
    first.build_landmarks()
    cpu, landmarks = time.process_time() - began, len(first.landmarks.values) // 3
    rows.append(f"| {segment} | {landmarks:,} landmarks built again | - | - | {cpu * 1000:,.0f} |")
    log.delete()
    return rows


def main() -> None:
    """Measure a segment of single messages, then one with forged batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--look-ups", type=int, default=1000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-look-ups-", dir=options.directory) as folder:
        for with_forgeries in (False, True):
            place = Path(folder) / str(with_forgeries)
            rows += measure(place, options.megabytes * MB, options.look_ups, with_forgeries=with_forgeries)
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = TEXT.format(day=day, look_ups=options.look_ups, rows="\n".join(rows))
    print(text)
    if options.page:
        write_half(PAGE, "look-ups", text)


if __name__ == "__main__":
    main()
