"""Records per CPU-second: framing, decoding by columns, decoding by rows, and fastavro alone.

    python tests/bench/bench_decode.py [--records 100000] [--stage] [--layout] [--spark]

One thread, one process; the best of several passes, CPU time only, so that a busy machine matters less. With
`--stage` also a whole task of a load, reading from a broker of its own, stage by stage. With `--layout` also
such a task with each of some layouts of the table. With `--spark` also Spark's own from_json over the same
JSON objects, on one core, without the scan.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.records import Message
from millrace.records.compression import Codec
from millrace.records.framing import Frames, frame_batches
from millrace_avro.json_rows import JsonDecoder
from millrace_avro.rows import RowDecoder
from millrace_avro.schema import Record, parse
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.columns import check_table_schema
from millrace_warehouse.history.iceberg_types import arrow_schema, iceberg_schema
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.load.task import write_cut
from millrace_warehouse.log.formats import MessageFormat
from millrace_warehouse.log.messages import SLICE_ROWS, Decoder, Filing
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches
from millrace_warehouse.sequences import count_sequences
from millrace_warehouse.table_layout import TableLayout

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a file
from tests.bench.direct_task import direct_task, topic_of_page_views, written_bytes
from tests.bench.page_views import PAGE_VIEW, PREFIX, START_MS, Visitors, batches_of, page_views
from tests.bench.replay import cpu_seconds

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


JSON_VIEW = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}
"""A PageView without the audit header, which JSON objects do not have."""


def json_views(records: int) -> list[bytes]:
    """PageViews as JSON objects."""
    dice = random.Random(1)
    visitors = Visitors(dice)
    names = [field["name"] for field in JSON_VIEW["fields"]]
    events = (visitors.event(number, dice) for number in range(records))
    return [json.dumps({name: event[name] for name in names}).encode() for event in events]


def measure_json(values: Sequence[bytes]) -> None:
    """Print one line per way of decoding JSON objects."""
    records = len(values)
    messages = [Message(START_MS + number, None, value) for number, value in enumerate(values)]
    batches = [(h, memoryview(raw)) for h, raw in batches_of(messages, Codec.ZSTD, BATCH_RECORDS)]
    slices = [part for frames, _ in frame_batches(batches) for part in frames.slices(SLICE_ROWS)]
    decoder = JsonDecoder(check_table_schema(JSON_VIEW))
    cut = cut_ranges([Range("T", 0, 0, 1 << 60)], 1 << 61)[0]

    def decode() -> None:
        for part in slices:
            decoder.decode(part.buffer, part.value, part.value + part.value_size)

    def whole() -> list[Any]:
        filing = Filing(1, START_MS + (1 << 40))
        whole_decoder = Decoder(JSON_VIEW, lambda _: None, filing, MessageFormat("json"))
        return list(whole_decoder.decode(cut, [FetchedBatches(batches)], RangeStats.for_cut(cut)))

    size = sum(map(len, values)) / records
    print(f"PageView in JSON: {size:.0f} bytes a message, million records per CPU-second")
    print(f"  to Arrow                    {best_rate(records, decode):8.2f}")
    print(f"  unzip, frame and decode     {best_rate(records, whole):8.2f}")


def measure_spark(values: Sequence[bytes], passes: int = 3) -> None:
    """Print the rate of Spark's from_json, from the CPU time of its JVM."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    texts, integers = ("clientAddress", "method", "url", "protocol", "referrer", "userAgent"), ("status",)
    columns = {field["name"]: "long" for field in JSON_VIEW["fields"]}
    columns |= dict.fromkeys(texts, "string") | dict.fromkeys(integers, "int") | {"_bad": "string"}
    ddl = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    (jvm,) = [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]

    def cpu(frame: DataFrame) -> float:
        before = cpu_seconds(jvm)
        frame.write.format("noop").mode("overwrite").save()
        return cpu_seconds(jvm) - before

    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"value": pa.array(values, pa.string())}), f"{folder}/values.parquet")
        scan = spark.read.parquet(f"{folder}/values.parquet")
        decoded = scan.select(F.from_json("value", ddl, options).alias("row")).select("row.*")
        costs = [cpu(decoded) - cpu(scan) for _ in range(passes + 1)][1:]  # the first one warms up
    print(f"  from_json of Spark          {len(values) / min(costs) / 1e6:8.2f}")
    spark.stop()


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


LAYOUTS: Sequence[tuple[list[str], list[str]]] = (
    ([], []),
    ([], ["status"]),
    ([], ["url"]),
    ([], ["url", "header.time DESC"]),
    (["bucket(16, clientAddress)"], []),
    (["bucket(16, header.sequence)"], []),
    (["method"], []),
    (["clientAddress"], []),
    (["bucket(16, clientAddress)"], ["url"]),
)
"""Partitions and sort orders of PageViews. Every row has a sequence number of its own."""


def measure_layouts(records: int) -> None:
    """Print one line per layout of the table."""
    with topic_of_page_views(records, Codec.ZSTD) as task:
        print("a task, PageView, zstd: million records per CPU-second, bytes a row, files")
        for partition, sort in LAYOUTS:
            source = dataclasses.replace(task.source, layout=TableLayout.parse(partition, sort))
            laid_out = dataclasses.replace(task, source=source)
            files = len(write_cut(laid_out).files)
            rate = best_rate(records, partial(write_cut, laid_out), 5)
            name = "; ".join([*partition, *(f"by {each}" for each in sort)]) or "hours alone"
            print(f"  {name:40} {rate:8.2f} {written_bytes(laid_out):8.1f} {files:6}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--stage", action="store_true", help="also a whole task of a load")
    parser.add_argument("--layout", action="store_true", help="also a whole task with each of some layouts")
    parser.add_argument("--spark", action="store_true", help="also Spark's from_json")
    options = parser.parse_args()
    measure("long and string", FLAT, flat_messages(options.records))
    measure("PageView", PAGE_VIEW, list(page_views(options.records)))
    measure_json(views := json_views(options.records))
    if options.spark:
        measure_spark(views * 5)
    if options.stage:
        measure_stages(3 * options.records, Codec.NONE)
        measure_stages(3 * options.records, Codec.ZSTD)
    if options.layout:
        measure_layouts(3 * options.records)
