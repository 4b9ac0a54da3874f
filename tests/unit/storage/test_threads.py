"""The loop appends and reads while one thread flushes and another deletes: nothing is lost or misread."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

from millrace.config import LogConfig
from millrace.errors import OffsetOutOfRange
from millrace.records import split_batches
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.state import LogState
from tests.unit.storage.logs import appended, batch, slice_bytes

TURNS = 400


def test_a_reader_at_the_tail_sees_every_batch_while_segments_are_flushed_rolled_and_deleted(
    tmp_path: Path,
) -> None:
    settings = LogConfig(segment_bytes=1000, retention_bytes=20_000)
    log = PartitionLog(tmp_path, settings, time.time)
    stop = threading.Event()
    failures: list[BaseException] = []
    wanted: queue.Queue[None] = queue.Queue()
    done: queue.Queue[LogState] = queue.Queue()

    def flushing() -> None:
        while not stop.is_set():
            try:
                wanted.get(timeout=0.05)
                done.put(log.flush())
            except queue.Empty:
                continue
            except BaseException as error:
                failures.append(error)
                return

    def cleaning() -> None:
        while not stop.is_set():
            try:
                log.apply_retention()
                log.offset_for_timestamp(0)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=flushing), threading.Thread(target=cleaning)]
    for thread in threads:
        thread.start()
    written: list[int] = []
    seen: list[int] = []
    offset = 0
    try:
        for turn in range(TURNS):
            written += [
                result.base_offset for result in appended(log, *[batch(2) for _ in range(turn % 4 + 1)])
            ]
            wanted.put(None)
            log.publish(done.get(timeout=10))
            while (found := log.read(offset, 5000)) is not None:
                headers = [header for header, _ in split_batches(slice_bytes(found))]
                seen += [header.base_offset for header in headers]
                offset = headers[-1].next_offset
            # A reader of the oldest offset may be overtaken by retention, and by nothing else.
            try:
                oldest = slice_bytes(log.read(log.log_start_offset, 100))
                assert next(split_batches(oldest))[0].base_offset in written
            except OffsetOutOfRange:
                pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    assert seen == written
    assert log.log_start_offset > 0, "retention took part"
    log.close()
