"""Ways of decoding messages that `bench_decode` compares: Avro, JSON, and Spark's from_json."""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from millrace_warehouse.log.formats import MessageFormat
from millrace_warehouse.log.messages import SLICE_ROWS, DecodedBatch, Decoder, Filing
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches
from millrace_warehouse.sequences import count_sequences
from tests.bench.page_views import PAGE_VIEW, PREFIX, START_MS, Visitors, batches_of
from tests.bench.replay import cpu_seconds

Ways = dict[str, Callable[[], object]]
FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
JSON_VIEW = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}
"""A PageView without the audit header, which JSON objects do not have."""
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


def json_views(records: int) -> list[bytes]:
    """PageViews as JSON objects."""
    dice = random.Random(1)
    visitors = Visitors(dice)
    names = [field["name"] for field in JSON_VIEW["fields"]]
    events = (visitors.event(number, dice) for number in range(records))
    return [json.dumps({name: event[name] for name in names}).encode() for event in events]


def avro_ways(schema: Any, messages: Sequence[Message]) -> Ways:
    """Return the ways of decoding messages in Avro by their names."""
    batches = [(h, memoryview(raw)) for h, raw in batches_of(messages, Codec.ZSTD, BATCH_RECORDS)]
    slices = [part for frames, _ in frame_batches(batches) for part in frames.slices(SLICE_ROWS)]
    node = parse(schema)
    assert isinstance(node, Record)
    columns, rows, parsed = ColumnDecoder(node, node), RowDecoder(node, node), fastavro.parse_schema(schema)
    bodies = [body for frame in slices for body in _bodies(frame)]
    cut = cut_ranges([Range("T", 0, 0, 1 << 60)], 1 << 61)[0]
    file_schema = arrow_schema(iceberg_schema(check_table_schema(schema)))

    def decode_bodies(decoder: ColumnDecoder | RowDecoder) -> None:
        for part in slices:
            decoder.decode(part.buffer, part.value + 5, part.value + part.value_size)

    def whole() -> Iterator[DecodedBatch]:
        decoder = Decoder(schema, {1: schema}.get, Filing(1, START_MS + (1 << 40)))
        return decoder.decode(cut, [FetchedBatches(batches)], RangeStats.for_cut(cut))

    def parquet() -> None:
        """As a task of a load, from batches in memory."""
        with tempfile.TemporaryDirectory() as folder:
            files = HourFiles(Path(folder), "part", file_schema)
            for decoded in whole():
                files.add(decoded.rows)
            files.close()

    ways: Ways = {
        "fastavro, to dicts": lambda: _fastavro(bodies, parsed),
        "by rows, to Arrow": lambda: decode_bodies(rows),
        "by columns, to Arrow": lambda: decode_bodies(columns),
        "unzip and frame": lambda: _exhaust(frame_batches(batches)),
        "unzip, frame and decode": lambda: _exhaust(whole()),
        "the same, to Parquet": parquet,
    }
    if schema is PAGE_VIEW:
        done = list(whole())
        ways["count audit sequences"] = lambda: [count_sequences(batch.rows) for batch in done]
    return ways


def json_ways(values: Sequence[bytes]) -> Ways:
    """Return the ways of decoding JSON objects by their names."""
    messages = [Message(START_MS + number, None, value) for number, value in enumerate(values)]
    batches = [(h, memoryview(raw)) for h, raw in batches_of(messages, Codec.ZSTD, BATCH_RECORDS)]
    slices = [part for frames, _ in frame_batches(batches) for part in frames.slices(SLICE_ROWS)]
    decoder = JsonDecoder(check_table_schema(JSON_VIEW))
    cut = cut_ranges([Range("T", 0, 0, 1 << 60)], 1 << 61)[0]

    def decode() -> None:
        for part in slices:
            decoder.decode(part.buffer, part.value, part.value + part.value_size)

    def whole() -> Iterator[DecodedBatch]:
        filing = Filing(1, START_MS + (1 << 40))
        whole_decoder = Decoder(JSON_VIEW, lambda _: None, filing, MessageFormat("json"))
        return whole_decoder.decode(cut, [FetchedBatches(batches)], RangeStats.for_cut(cut))

    return {
        "to Arrow": decode,
        "unzip and frame": lambda: _exhaust(frame_batches(batches)),
        "unzip, frame and decode": lambda: _exhaust(whole()),
    }


@contextmanager
def from_json_of_spark(values: Sequence[bytes]) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the rate of Spark's from_json, from the CPU time of its JVM."""
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

        def rate(passes: int = 3) -> float:
            return len(values) / min(cpu(decoded) - cpu(scan) for _ in range(passes)) / 1e6

        rate()  # warms up
        yield rate
    spark.stop()


def _exhaust(results: Iterable[object]) -> None:
    """Take all results and keep none, as a load does: kept buffers would cost fresh memory."""
    deque(results, maxlen=0)


def _bodies(frames: Frames) -> list[bytes]:
    starts, sizes = frames.value.tolist(), frames.value_size.tolist()
    data = frames.buffer.data
    return [bytes(data[start + 5 : start + size]) for start, size in zip(starts, sizes, strict=True)]


def _fastavro(bodies: list[bytes], schema: Any) -> None:
    for body in bodies:
        fastavro.schemaless_reader(io.BytesIO(body), schema, None)
