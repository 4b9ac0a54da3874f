"""Cost of reading a load back for the audit, beside the cost of writing it.

    python -m tests.bench.bench_read_back [--events 200000] [--instances 200]

PageViews of many producers, mixed, from a log in memory through a load's own tasks into Parquet on this disk;
then what the warehouse's reader does with the files. CPU is this process's, all threads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage import open_storage
from tests.support import REPOSITORY
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, event, load_run

ROUNDS = 5
PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/"


def fill(log: MemoryLog, events: int, instances: int) -> None:
    log.schemas = {7: PAGE_VIEW}
    batch = []
    for n in range(events):
        fields = {"clientAddress": f"10.0.{n % 251}.{n % 241}", "method": "GET", "protocol": "HTTP/1.1"}
        fields |= {"userAgent": f"{AGENT}{n % 997}", "referrer": f"/from/{n % 4999}"}
        instance = n * 7919 % instances
        who = {"instance": instance, "server": f"web-{instance}"}
        time_ms = START + n * 3_600_000 // events
        batch.append(
            event(n // instances, time_ms, schema=(7, PAGE_VIEW), status=200, bytes=n % 9973, **who, **fields)  # type: ignore[arg-type]
        )
        if len(batch) == 500:
            log.append(0, batch)
            batch.clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--instances", type=int, default=200)
    given = parser.parse_args()
    log = MemoryLog(1)
    fill(log, given.events, given.instances)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        load_topic(load_run(log, Path(folder), cut_bytes=64 << 20), TOPIC)
        written = time.process_time() - began
        storage = open_storage(folder)
        manifest = read_load(Topic(storage, TOPIC), 1)
        took = []
        for _ in range(ROUNDS):
            began = time.process_time()
            found = read_back(storage, manifest)
            took.append(time.process_time() - began)
        assert found.counts.total == manifest.rows
        header = total = 0
        for file in manifest.files:
            metadata = pq.read_metadata(Path(folder, TOPIC, file.path))
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    total += column.total_compressed_size
                    if column.path_in_schema.startswith("header."):
                        header += column.total_compressed_size
    million = manifest.rows / 1e6
    read = sorted(took)[ROUNDS // 2]
    print(f"written: {written / million:.2f} s of CPU per million rows")
    print(f"read back: {read / million:.2f} s, {read / written:.1%} of that; median of {ROUNDS}")
    print(f"bytes read: {header / total:.0%} of the files'")


if __name__ == "__main__":
    main()
