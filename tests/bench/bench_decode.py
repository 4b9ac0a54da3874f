"""Records per CPU-second: framing, decoding by columns, decoding by rows, and fastavro alone.

    python tests/bench/bench_decode.py [--records 100000] [--stage] [--layout] [--spark] [--page]

One thread, one process; the best of several passes, CPU time only, so that a busy machine matters less. With
`--stage` also a whole task of a load, reading from a broker of its own, stage by stage. With `--layout` also
such a task with each of some layouts of the table. With `--spark` also Spark's own from_json over the same
JSON objects, on one core, without the scan. `--page` measures PageViews alone, in Avro, in JSON and by Spark
in turn, and puts the figures into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from millrace.records import Message
from millrace.records.compression import Codec
from millrace_warehouse.load.task import write_cut
from millrace_warehouse.table_layout import TableLayout

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a file
from tests.bench.decoders import (
    BATCH_RECORDS,
    FLAT,
    Ways,
    avro_ways,
    flat_messages,
    from_json_of_spark,
    json_views,
    json_ways,
)
from tests.bench.direct_task import direct_task, topic_of_page_views, written_bytes
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.bench.page_views import PAGE_VIEW, PREFIX, page_views

SLOW = ("fastavro, to dicts", "by rows, to Arrow")
"""Ways that are measured in fewer passes."""
TEXT = """## Decoding a load's messages

Millions of PageViews that a CPU-second decodes. *To Arrow* begins with messages that are unpacked and framed.
*Unzip, frame and decode* begins with fetched batches of {batch} messages in zstd, and ends with all columns
of a load's rows. A message has {avro_bytes:.0f} bytes in Avro, with the {header} fields of the audit header,
and {json_bytes:.0f} in JSON, which has no such fields. *from_json* is Spark {spark} with one core, in
PERMISSIVE mode, with the same columns as the JSON decoder. Its CPU time is that of the JVM, less that of a
scan without from_json. All ways take turns for {rounds} rounds. In each round the fastest of several passes
over {records:,} messages counts, for Spark over {spark_records:,}. A cell has the median of the rounds and,
in brackets, the lowest and the highest.

- Run: `python tests/bench/bench_decode.py --page`, {day}; other processes used {busy:.0%} of all cores
  before the rounds
- Machine: {machine}

| level | required | measured | reached |
| --- | --- | ---: | ---: |
{levels}

| messages | what | M messages/CPU-s |
| --- | --- | ---: |
{rows}
"""
JSON_TO_ARROW, FROM_JSON = ("JSON", "to Arrow"), ("JSON", "from_json of Spark")
JSON_LEVEL, SPARK_LEVEL = 0.9, 2.0
SPARK_TIMES = 5
"""Times that Spark's messages are as many: its steps have fixed costs."""


def best_rate(records: int, work: Callable[[], object], passes: int = 7) -> float:
    """Millions of records per CPU-second, of the fastest pass."""
    fastest = float("inf")
    for _ in range(passes):
        start = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - start)
    return records / fastest / 1e6


def measure(name: str, sizes: Sequence[int], ways: Ways) -> None:
    """Print one line per way of decoding messages of some sizes."""
    size = sum(sizes) / len(sizes)
    print(f"{name}: {size:.0f} bytes a message, million records per CPU-second")
    for what, way in ways.items():
        rate = best_rate(len(sizes), way, 2 if what in SLOW else 7)
        print(f"  {what:27} {rate:8.2f}")


Rates = Mapping[tuple[str, str], Sequence[float]]


def page_rates(views: Sequence[Message], values: list[bytes], rounds: int) -> tuple[Rates, list[float]]:
    """Return each way's rates by round, and the share of all cores that others used before each round."""
    avro, objects = avro_ways(PAGE_VIEW, views), json_ways(values)
    ways = {("Avro", what): avro[what] for what in ("by columns, to Arrow", *list(objects)[1:])}
    ways |= {("JSON", what): way for what, way in objects.items()}
    rates: dict[tuple[str, str], list[float]] = {way: [] for way in [*ways, FROM_JSON]}
    busy = []
    with from_json_of_spark(values * SPARK_TIMES) as spark_rate:
        for _ in range(rounds):
            busy.append(busy_share())
            for name, way in ways.items():
                rates[name].append(best_rate(len(values), way))
            rates[FROM_JSON].append(spark_rate())
            print(", ".join(f"{' '.join(name)} {each[-1]:.2f}" for name, each in rates.items()), flush=True)
    return rates, busy


def levels(rates: Rates) -> list[str]:
    """Return the rows of the levels, missed levels first."""
    times = [mine / theirs for mine, theirs in zip(rates[JSON_TO_ARROW], rates[FROM_JSON], strict=True)]
    rows = [
        ("JSON to Arrow, M messages/CPU-s", JSON_LEVEL, "", rates[JSON_TO_ARROW]),
        ("JSON to Arrow, of from_json in the same round", SPARK_LEVEL, " times", times),
    ]
    rows.sort(key=lambda row: statistics.median(row[3]) >= row[1])
    return [
        f"| {what} | ≥ {level:g}{unit} | {cell(found)}{unit} "
        f"| {'yes' if statistics.median(found) >= level else '**no**'} |"
        for what, level, unit, found in rows
    ]


def cell(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})"


def write_page(records: int, rounds: int) -> None:
    """Measure the ways of the page, and write its text."""
    import pyspark

    views, values = list(page_views(records)), json_views(records)
    rates, busy = page_rates(views, values, rounds)
    text = TEXT.format(
        batch=BATCH_RECORDS,
        avro_bytes=statistics.fmean(len(view.value or b"") for view in views),
        header=len(PAGE_VIEW["fields"][0]["type"]["fields"]),
        json_bytes=statistics.fmean(map(len, values)),
        spark=pyspark.__version__,
        rounds=rounds,
        records=records,
        spark_records=records * SPARK_TIMES,
        day=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        busy=statistics.fmean(busy),
        machine=in_words(machine()),
        levels="\n".join(levels(rates)),
        rows="\n".join(f"| {name} | {what} | {cell(each)} |" for (name, what), each in rates.items()),
    )
    write_half(PAGE, "decoding", text)


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


def main() -> None:
    """Print all ways, or write those of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the page")
    parser.add_argument("--stage", action="store_true", help="also a whole task of a load")
    parser.add_argument("--layout", action="store_true", help="also a whole task with each of some layouts")
    parser.add_argument("--spark", action="store_true", help="also Spark's from_json")
    parser.add_argument("--page", action="store_true", help="write a part of docs/benchmarks.md instead")
    options = parser.parse_args()
    if options.page:
        write_page(options.records, options.rounds)
        return
    for name, schema, messages in (
        ("long and string", FLAT, flat_messages(options.records)),
        ("PageView", PAGE_VIEW, list(page_views(options.records))),
    ):
        sizes = [len(message.value or b"") - len(PREFIX) for message in messages]
        measure(name, sizes, avro_ways(schema, messages))
    values = json_views(options.records)
    measure("PageView in JSON", [*map(len, values)], json_ways(values))
    if options.spark:
        with from_json_of_spark(values * SPARK_TIMES) as rate:
            print(f"  {FROM_JSON[1]:27} {rate():8.2f}")
    if options.stage:
        measure_stages(3 * options.records, Codec.NONE)
        measure_stages(3 * options.records, Codec.ZSTD)
    if options.layout:
        measure_layouts(3 * options.records)


if __name__ == "__main__":
    main()
