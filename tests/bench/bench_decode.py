"""Records per CPU-second: framing, decoding by columns, decoding by rows, and fastavro alone.

    python tests/bench/bench_decode.py [--records 100000]

One thread, one process; the best of several passes, CPU time only, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from millrace.compression import Codec
from millrace.records import BatchHeader, Message, build_batch
from millrace_spark.avro_decoder import ColumnDecoder
from millrace_spark.avro_rows import RowDecoder
from millrace_spark.avro_schema import Record, parse
from millrace_spark.decode import SLICE_ROWS, Decoder
from millrace_spark.framing import Frames, frame_batches
from millrace_spark.ranges import Range, RangeStats, cut_ranges
from millrace_spark.reading import Batch, FetchedBatches
from millrace_spark.sequences import count_sequences

PAGE_VIEW = json.loads((Path(__file__).parents[2] / "schemas" / "PageView.avsc").read_text())
FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
BATCH_RECORDS = 500


def page_view(number: int, dice: random.Random) -> dict[str, Any]:
    """An event like those of a web server's log."""
    return {
        "header": {
            "time": 1431857103000 + number, "server": "web-3", "service": "www",
            "instance": 5249979066121302517, "sequence": number,
        },
        "memberId": dice.choice((None, dice.randrange(10**7))),
        "clientAddress": f"83.149.9.{number % 256}",
        "method": "GET",
        "url": f"/presentations/logstash-monitorama-2013/images/kibana-search{number % 97}.png",
        "protocol": "HTTP/1.1",
        "referrer": dice.choice((None, "http://semicomplete.com/presentations/logstash-monitorama-2013/")),
        "userAgent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 Chrome/32.0.1700.77",
        "status": 200,
        "bytes": dice.choice((None, dice.randrange(10**6))),
    }  # fmt: skip


def flat(number: int, dice: random.Random) -> dict[str, Any]:
    """A number and 190 characters."""
    return {"a": number, "b": "x" * 190}


def made_batches(schema: Any, event: Callable[[int, random.Random], Any], records: int) -> list[Batch]:
    """The events as zstd batches of 500."""
    parsed, dice = fastavro.parse_schema(schema), random.Random(1)
    batches: list[Batch] = []
    base = 0
    for first in range(0, records, BATCH_RECORDS):
        messages = []
        for number in range(first, min(first + BATCH_RECORDS, records)):
            out = io.BytesIO(b"\0\0\0\0\1")
            out.seek(5)
            fastavro.schemaless_writer(out, parsed, event(number, dice))
            messages.append(Message(1431857103000 + number, None, out.getvalue()))
        raw = build_batch(messages, codec=Codec.ZSTD, base_offset=base)
        header = BatchHeader.parse(raw)
        assert header is not None
        batches.append((header, memoryview(raw)))
        base += header.size + len(messages)
    return batches


def best_rate(records: int, work: Callable[[], object], passes: int = 7) -> float:
    """Millions of records per CPU-second, of the fastest pass."""
    fastest = float("inf")
    for _ in range(passes):
        start = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - start)
    return records / fastest / 1e6


def measure(name: str, schema: Any, event: Callable[[int, random.Random], Any], records: int) -> None:
    """Print one line per way of decoding."""
    batches = made_batches(schema, event, records)
    frames = [frames for frames, _ in frame_batches(batches)]
    slices = [f.select(slice(n, n + SLICE_ROWS)) for f in frames for n in range(0, len(f), SLICE_ROWS)]
    node = parse(schema)
    assert isinstance(node, Record)
    columns, rows, parsed = ColumnDecoder(node, node), RowDecoder(node, node), fastavro.parse_schema(schema)
    bodies = [body for frame in slices for body in _bodies(frame)]
    cut = cut_ranges([Range("T", 0, 0, 1 << 60)], 1 << 61)[0]

    def decode_bodies(decoder: ColumnDecoder | RowDecoder) -> None:
        for part in slices:
            decoder.decode(part.buffer, part.value + 5, part.value + part.value_size)

    def whole() -> list[Any]:
        decoder = Decoder(schema, {1: schema}.get)
        return list(decoder.decode(cut, [FetchedBatches(batches)], RangeStats.of(cut)))

    print(f"{name}: {sum(map(len, bodies)) / records:.0f} bytes a message, million records per CPU-second")
    print(f"  fastavro, to dicts          {best_rate(records, lambda: _fastavro(bodies, parsed), 2):8.2f}")
    print(f"  by rows, to Arrow           {best_rate(records, lambda: decode_bodies(rows), 2):8.2f}")
    print(f"  by columns, to Arrow        {best_rate(records, lambda: decode_bodies(columns)):8.2f}")
    print(f"  unzip and frame             {best_rate(records, lambda: list(frame_batches(batches))):8.2f}")
    print(f"  unzip, frame and decode     {best_rate(records, whole):8.2f}")
    if name == "PageView":
        done = whole()
        counted = best_rate(records, lambda: [count_sequences(batch.rows) for batch in done])
        print(f"  count audit sequences       {counted:8.2f}")


def _bodies(frames: Frames) -> list[bytes]:
    starts, sizes = frames.value.tolist(), frames.value_size.tolist()
    return [frames.buffer.data[start + 5 : start + size] for start, size in zip(starts, sizes, strict=True)]


def _fastavro(bodies: list[bytes], schema: Any) -> None:
    for body in bodies:
        fastavro.schemaless_reader(io.BytesIO(body), schema, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    wanted = parser.parse_args().records
    measure("long and string", FLAT, flat, wanted)
    measure("PageView", PAGE_VIEW, page_view, wanted)
