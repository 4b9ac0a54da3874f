"""Records per CPU-second: framing, decoding by columns, decoding by rows, and fastavro alone.

    python tests/bench/bench_decode.py [--records 100000] [--stage]

One thread, one process; the best of several passes, CPU time only, so that a busy machine matters less. With
`--stage` also a whole task of a load, reading from a broker of its own, stage by stage.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro

from millrace.records import Message
from millrace.records.compression import Codec
from millrace.records.framing import Frames, frame_batches
from millrace_avro.rows import RowDecoder
from millrace_avro.schema import Record, parse
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.columns import check_table_schema
from millrace_warehouse.history.iceberg_types import arrow_schema, iceberg_schema
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.log.messages import SLICE_ROWS, Decoder, Filing
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches
from millrace_warehouse.sequences import count_sequences

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a file
from tests.bench.direct_task import direct_task, topic_of_page_views, written_bytes
from tests.bench.page_views import PAGE_VIEW, PREFIX, START_MS, Visitors, batches_of, page_views

FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
BATCH_RECORDS = 500


def flat_messages(records: int) -> list[Message]:
    """Messages of the flat schema: a number, and a line of a web server's log, of which no two are alike."""
    schema, messages, dice = fastavro.parse_schema(FLAT), [], random.Random(1)
    visitors = Visitors(dice)
    for number in range(records):
        out = io.BytesIO()
        out.write(PREFIX)
        fastavro.schemaless_writer(out, schema, {"a": number, "b": visitors.line(dice)})
        messages.append(Message(START_MS + number, None, out.getvalue()))
    return messages


def best_rate(records: int, work: Callable[[], object], passes: int = 7) -> float:
    """Millions of records per CPU-second, of the fastest pass."""
    fastest = float("inf")
    for _ in range(passes):
        start = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - start)
    return records / fastest / 1e6


def measure(name: str, schema: Any, messages: Sequence[Message]) -> None:
    """Print one line per way of decoding."""
    records = len(messages)
    batches = [(h, memoryview(raw)) for h, raw in batches_of(messages, Codec.ZSTD, BATCH_RECORDS)]
    frames = [frames for frames, _ in frame_batches(batches)]
    slices = [f.select(slice(n, n + SLICE_ROWS)) for f in frames for n in range(0, len(f), SLICE_ROWS)]
    node = parse(schema)
    assert isinstance(node, Record)
    columns, rows, parsed = ColumnDecoder(node, node), RowDecoder(node, node), fastavro.parse_schema(schema)
    bodies = [body for frame in slices for body in _bodies(frame)]
    cut = cut_ranges([Range("T", 0, 0, 1 << 60)], 1 << 61)[0]
    file_schema = arrow_schema(iceberg_schema(check_table_schema(schema)))

    def decode_bodies(decoder: ColumnDecoder | RowDecoder) -> None:
        for part in slices:
            decoder.decode(part.buffer, part.value + 5, part.value + part.value_size)

    def whole() -> list[Any]:
        decoder = Decoder(schema, {1: schema}.get, Filing(1, START_MS + (1 << 40)))
        return list(decoder.decode(cut, [FetchedBatches(batches)], RangeStats.for_cut(cut)))

    def parquet() -> None:
        """As a task of a load, from batches in memory."""
        with tempfile.TemporaryDirectory() as folder:
            files = HourFiles(Path(folder), "part", file_schema)
            for decoded in whole():
                files.add(decoded.rows)
            files.close()

    print(f"{name}: {sum(map(len, bodies)) / records:.0f} bytes a message, million records per CPU-second")
    print(f"  fastavro, to dicts          {best_rate(records, lambda: _fastavro(bodies, parsed), 2):8.2f}")
    print(f"  by rows, to Arrow           {best_rate(records, lambda: decode_bodies(rows), 2):8.2f}")
    print(f"  by columns, to Arrow        {best_rate(records, lambda: decode_bodies(columns)):8.2f}")
    print(f"  unzip and frame             {best_rate(records, lambda: list(frame_batches(batches))):8.2f}")
    print(f"  unzip, frame and decode     {best_rate(records, whole):8.2f}")
    print(f"  the same, to Parquet        {best_rate(records, parquet):8.2f}")
    if name == "PageView":
        done = whole()
        counted = best_rate(records, lambda: [count_sequences(batch.rows) for batch in done])
        print(f"  count audit sequences       {counted:8.2f}")


def _bodies(frames: Frames) -> list[bytes]:
    starts, sizes = frames.value.tolist(), frames.value_size.tolist()
    data = frames.buffer.data
    return [bytes(data[start + 5 : start + size]) for start, size in zip(starts, sizes, strict=True)]


def _fastavro(bodies: list[bytes], schema: Any) -> None:
    for body in bodies:
        fastavro.schemaless_reader(io.BytesIO(body), schema, None)


def measure_stages(records: int, codec: Codec) -> None:
    """Print one line per stage of a task of a load."""
    name = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    with topic_of_page_views(records, codec) as task:
        size = written_bytes(task)
        print(f"a task, PageView, {name}: {size:.1f} bytes a row, million records per CPU-second")
        for stage in direct_task(task):
            print(f"  {stage.name:27} {stage.rate:8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--stage", action="store_true", help="also a whole task of a load")
    options = parser.parse_args()
    measure("long and string", FLAT, flat_messages(options.records))
    measure("PageView", PAGE_VIEW, list(page_views(options.records)))
    if options.stage:
        measure_stages(3 * options.records, Codec.NONE)
        measure_stages(3 * options.records, Codec.ZSTD)
