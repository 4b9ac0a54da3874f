"""Costs of one partition log: CPU seconds per GB appended, flushed and read.

    python tests/bench/bench_log.py [--megabytes 512] [--directory DIR]

Batches of three sizes; CPU is user + system of this process. Reads stop at the slice that a server would
hand to sendfile: no byte is copied, so what is measured is finding it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from millrace.config import LogConfig
from millrace.records import Message, build_batch
from millrace_broker.storage.partition_log import PartitionLog

MB = 1 << 20
PER_APPEND_BYTES = MB


def measure(directory: Path, messages: int, total: int) -> str:
    """One line: append, flush, sequential read and random look-up costs for one batch size."""
    template = build_batch([Message(1, None, b"x" * 200)] * messages)
    count = max(1, PER_APPEND_BYTES // len(template))
    buffers = [bytearray(template) for _ in range(count)]
    log = PartitionLog(directory, LogConfig(), time.time)
    started = time.process_time()
    while log.end < total:
        log.append(buffers, ["User:bench"] * len(buffers))
    append = time.process_time() - started
    started = time.process_time()
    log.publish(log.flush())
    flush = time.process_time() - started

    offset, reads, started = 0, 0, time.process_time()
    while (found := log.read(offset, MB)) is not None:
        reads += 1
        last = found.position + found.length
        # A consumer's next offset: behind the last whole batch it got.
        whole = found.length // len(template)
        offset = found.position + (whole - 1) * len(template) + messages
        assert last <= total + 2 * PER_APPEND_BYTES
    read = time.process_time() - started
    chance, lookups, started = random.Random(1), 2000, time.process_time()
    for _ in range(lookups):
        log.read(chance.randrange(log.high_watermark), 1)
    look = time.process_time() - started
    size = log.end / 1e9
    batches = log.end / len(template)
    log.delete()
    return (
        f"{messages:>6} messages, {len(template):>8} B per batch: append {append / size:6.3f} s/GB "
        f"({append / batches * 1e6:5.2f} us/batch), flush {flush / size:5.3f} s/GB, "
        f"read {read / reads * 1e6:6.1f} us per fetch of 1 MiB, look-up {look / lookups * 1e6:6.1f} us"
    )


def main() -> None:
    """Print one line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="bench-log-", dir=options.directory))
    try:
        for messages in (1, 50, 4500):
            print(measure(base / str(messages), messages, options.megabytes * MB), flush=True)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
