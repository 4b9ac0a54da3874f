"""Speed of a load's parts alone: fetching, decoding, writing Parquet. One process, without Spark.

    python -m tests.bench.load.raw HOST:PORT TOPIC FOLDER SAMPLE      one JSON line

Fetching reads the whole topic; decoding and writing repeat on SAMPLE records in memory, best of three.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_warehouse.columns import check_table_schema
from millrace_warehouse.history.iceberg_types import arrow_schema, iceberg_schema
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.log.messages import DecodedBatch, Decoder, Filing
from millrace_warehouse.log.ranges import Cut, Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches, read_cut
from tests.bench.page_views import PAGE_VIEW

CUT_BYTES = 64 << 20
PASSES = 3
Limits = dict[str, dict[str, float]]


def measure(address: str, topic: str, folder: Path, sample: int) -> Limits:
    """Records, CPU and wall seconds of each part."""
    limits: Limits = {}
    with ClusterClient(address) as client:
        cuts = _cuts(client, topic)
        limits["fetch"] = _timed(lambda: count_records(client, topic))
        cut, fetched, count = _sample(client, cuts, sample)
    decoded: list[DecodedBatch] = []

    def decode() -> int:
        decoded[:] = _decode(cut, fetched)
        return count

    limits["decode"] = _best(decode)
    limits["write"] = _best(lambda: _write(folder, decoded))
    for limit in limits.values():
        limit["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return limits


def count_records(client: ClusterClient, topic: str) -> int:
    """Records of the topic, read from its beginning to its end, checksums and order of offsets checked."""
    return sum(_fetch(client, cut) for cut in _cuts(client, topic))


def _cuts(client: ClusterClient, topic: str) -> list[Cut]:
    positions = client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)
    starts, ends = client.list_offsets(topic, EARLIEST), client.list_offsets(topic, LATEST)
    return cut_ranges(
        [Range(topic, p, starts[p], end, byte_positions=positions) for p, end in sorted(ends.items())],
        CUT_BYTES,
    )


def _fetch(client: ClusterClient, cut: Cut) -> int:
    return sum(
        header.records_count
        for some in read_cut(client, cut, RangeStats.for_cut(cut))
        for header, _ in some.batches
    )


def _sample(
    client: ClusterClient, cuts: Sequence[Cut], records: int
) -> tuple[Cut, list[FetchedBatches], int]:
    """About that many records of the first partition's beginning, as they were fetched."""
    cut, kept, count = cuts[0], list[FetchedBatches](), 0
    for some in read_cut(client, cut, RangeStats.for_cut(cut)):
        batches = [(header, memoryview(bytes(batch))) for header, batch in some.batches]
        kept.append(FetchedBatches(batches))
        count += sum(header.records_count for header, _ in batches)
        if count >= records:
            break
    return cut, kept, count


def _decode(cut: Cut, fetched: Sequence[FetchedBatches]) -> list[DecodedBatch]:
    decoder = Decoder(PAGE_VIEW, lambda _: PAGE_VIEW, Filing(1, 1 << 50))
    return list(decoder.decode(cut, fetched, RangeStats.for_cut(cut)))


def _write(folder: Path, decoded: Sequence[DecodedBatch]) -> int:
    """As a task of a load writes: a file for each hour."""
    schema = arrow_schema(iceberg_schema(check_table_schema(PAGE_VIEW)))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        files = HourFiles(Path(name), "part", schema)
        for batch in decoded:
            files.add(batch.rows)
        return sum(file.rows for file in files.close())


def _timed(work: Callable[[], int]) -> dict[str, float]:
    wall, cpu = time.monotonic(), time.process_time()
    records = work()
    return {"rows": records, "wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}


def _best(work: Callable[[], int]) -> dict[str, float]:
    return min((_timed(work) for _ in range(PASSES)), key=lambda run: run["cpu_s"])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
