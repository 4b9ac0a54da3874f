"""The cells of the benchmark: what each starts, how much it moves, and what is kept of it.

A cell starts its own servers and ends them; what it measured goes into the result by name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.records.compression import Codec
from tests.bench.broker import meter
from tests.bench.broker.system import Missing
from tests.bench.load import loading, mirroring
from tests.bench.load.loading import Origin
from tests.bench.load.messages import DISTINCT, fill, stream
from tests.bench.load.servers import TOPIC, Broker, Servers
from tests.bench.load.ways import WAYS
from tests.support import REPOSITORY, start_for_the_test_run

MILLION = 1_000_000
CELLS: Mapping[str, tuple[str, ...]] = {
    "load": (*(way.name for way in WAYS), "raw"),
    "decoder": ("bench-decode",),
    "mirror": ("millrace-mirror", "millrace-mirror-of-kafka", "mirrormaker"),
}
LOAD_MESSAGES = 5 * MILLION
QUICK_MESSAGES = DISTINCT
ROUNDS = 3
"""Runs of a way that count; the page has their median and range."""
QUICK_ROUNDS = 1
MIRROR_MESSAGES = 7 * MILLION
QUICK_MIRROR_MESSAGES = 400_000
DECODE = REPOSITORY / "tests" / "bench" / "bench_decode.py"
DECODER_RECORDS = 100_000
DECODER_TIMEOUT_S = 300
RAW_SAMPLE = 500_000
RAW_TIMEOUT_S = 300
MIRRORS = {
    "millrace-mirror": "Millrace → Millrace",
    "millrace-mirror-of-kafka": "Apache Kafka → Millrace",
    "mirrormaker": "MirrorMaker 2: Apache Kafka → Apache Kafka",
}
Tell = Callable[[str], None]
Result = dict[str, Any]


def run(cell: str, names: Sequence[str], folder: Path, result: Result, tell: Tell, *, quick: bool) -> None:
    """Measure the names of a cell and put what was found into the result."""
    place = folder / cell
    place.mkdir()
    kept = result.setdefault(cell, {})
    for name in names:
        kept.pop(name, None)
    try:
        _RUNS[cell](names, place, kept, tell, quick)
    except Exception as error:  # an hour's figures of other cells must not be lost for one cell's mistake
        traceback.print_exc()
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        kept |= {name: {"title": name, "failed": text} for name in names if name not in kept}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _load(names: Sequence[str], folder: Path, kept: Result, tell: Tell, quick: bool) -> None:
    here = [way for way in WAYS if way.name in names]
    with Servers(folder) as servers:
        zookeeper, (registry, schema_id) = servers.zookeeper(), servers.registry()
        messages = stream(QUICK_MESSAGES if quick else LOAD_MESSAGES, schema_id, Codec.ZSTD)
        broker = servers.millrace("bench", zookeeper)
        filled = fill(broker.address, TOPIC, messages)
        kept["data"] = {"messages": filled.messages, "batches": filled.batches, "bytes": filled.data_bytes}
        tell(f"{filled.messages:,} messages, {filled.data_bytes / 1e6:,.0f} MB in the topic")
        origin = Origin(broker=broker, registry=registry, rows_by_hour=messages.rows_by_hour())
        origins = {False: origin}
        if any(way.on_kafka for way in here):
            try:
                kafka = servers.kafka("kafka")
                fill(kafka.address, TOPIC, messages)
                origins[True] = replace(origin, broker=kafka)
            except Missing as missing:
                kept |= {
                    way.name: {"title": way.title, "missing": str(missing)} for way in here if way.on_kafka
                }
                tell(f"MISSING: {missing}")
        pairs = [(way, origins[way.on_kafka]) for way in here if way.on_kafka in origins]
        kept |= loading.measure(pairs, folder, tell, rounds=QUICK_ROUNDS if quick else ROUNDS)
        if "raw" in names:
            kept["raw"] = _raw(broker, folder, tell, RAW_SAMPLE // (10 if quick else 1))


def _raw(broker: Broker, folder: Path, tell: Tell, sample: int) -> Result:
    """The parts alone, in a process of their own."""
    before = meter.cpu_seconds([broker.pid])
    command = [sys.executable, "-m", "tests.bench.load.raw", broker.address, TOPIC, str(folder), str(sample)]
    done = _run(command, RAW_TIMEOUT_S)
    if done.returncode != 0:
        tell(f"raw FAILED: {done.stderr.strip().splitlines()[-1]}")
        return {"title": "raw limits", "failed": done.stderr.strip().splitlines()[-1]}
    limits: Result = json.loads(done.stdout)
    limits["fetch"]["broker_cpu_s"] = meter.cpu_seconds([broker.pid]) - before
    for name, limit in limits.items():
        tell(f"raw {name:18} {limit['rows'] / limit['cpu_s'] / 1e3:7,.0f} k rows/CPU-s")
    return {"title": "raw limits", "limits": limits}


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; subprocess.TimeoutExpired, with the command killed, when it takes longer."""
    pipe = subprocess.PIPE
    process = start_for_the_test_run(command, cwd=REPOSITORY, stdout=pipe, stderr=pipe, text=True)
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _mirror(names: Sequence[str], folder: Path, kept: Result, tell: Tell, quick: bool) -> None:
    messages = stream(QUICK_MIRROR_MESSAGES if quick else MIRROR_MESSAGES, 1, Codec.NONE)
    for name in names:
        place = folder / name
        place.mkdir()
        found: Result = {"title": MIRRORS[name], "missing": None}
        try:
            if name == "mirrormaker":
                found |= mirroring.by_mirrormaker(place, messages)
            else:
                kafka = name == "millrace-mirror-of-kafka"
                found |= mirroring.by_millrace(place, messages, origin_is_kafka=kafka)
            tell(f"{name:26} {found['data_bytes'] * found['part'] / found['seconds'] / 1e6:6,.0f} MB/s")
        except Missing as missing:
            found["missing"] = str(missing)
            tell(f"{name:26} MISSING: {missing}")
        except mirroring.MirrorFailed as failure:
            found["failed"] = str(failure)
            tell(f"{name:26} FAILED: {failure}")
        finally:
            shutil.rmtree(place, ignore_errors=True)
        kept[name] = found


def _decoder(names: Sequence[str], folder: Path, kept: Result, tell: Tell, quick: bool) -> None:
    command = [sys.executable, str(DECODE), "--records", str(DECODER_RECORDS // (4 if quick else 1))]
    done = _run(command, DECODER_TIMEOUT_S)
    found: Result = {"title": "decoder alone", "missing": None, "rates": decoder_rates(done.stdout)}
    if done.returncode != 0 or not found["rates"]:
        found["failed"] = (done.stderr.strip().splitlines() or ["it printed no figures"])[-1]
    kept[names[0]] = found
    for schema, rates in found["rates"].items():
        tell(f"decoder, {schema}: " + ", ".join(f"{what} {rate:.2f} M/s" for what, rate in rates.items()))


def decoder_rates(printed: str) -> dict[str, dict[str, float]]:
    """Millions of records per CPU-second by schema and by what was done, from what bench_decode prints."""
    found: dict[str, dict[str, float]] = {}
    rates: dict[str, float] = {}
    for line in printed.splitlines():
        if heading := re.match(r"(\S[^:]*):.*million records per CPU-second", line):
            found[heading[1]] = rates = {}
        elif figure := re.match(r"  (\S.*?)\s+([\d.]+)$", line):
            rates[figure[1]] = float(figure[2])
    return found


_RUNS = {"load": _load, "decoder": _decoder, "mirror": _mirror}
