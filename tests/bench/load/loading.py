"""Millions of messages into Parquet by hour, each way as its user runs it and again in a warm session.

Every load is checked: as many rows in every hour as were produced. A way that fails, or cannot be had, leaves
its reason; the others go on.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from tests.bench.broker import meter
from tests.bench.broker.system import Missing
from tests.bench.load import ways
from tests.bench.load.accounting import TreeMeter, Used
from tests.bench.load.servers import SCHEMA, TOPIC, Broker
from tests.bench.load.spark_jobs import Task
from tests.bench.load.ways import Way
from tests.support import REPOSITORY, start_for_the_test_run

TIMEOUT_S = 300


class LoadFailed(Exception):
    """A load ended with an error or wrote something else; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is loaded."""

    broker: Broker
    registry: str
    rows_by_hour: Mapping[str, int]

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(self.rows_by_hour.values())


def measure(
    way: Way, origin: Origin, folder: Path, tell: Callable[[str], None], *, warm_runs: int
) -> dict[str, Any]:
    """Both forms of one way, as plain values."""
    found: dict[str, Any] = {"title": way.title, "missing": None}
    try:
        ways.confs(way)
        found["once"] = _plain(_once(way, origin, folder))
        tell(f"whole command {_words(found['once'])}")
        found["warm"] = [_plain(run) for run in _warm(way, origin, folder, warm_runs)]
        tell(f"warm session  {_words(found['warm'][-1])}")
    except Missing as missing:
        found["missing"] = str(missing)
        tell(f"MISSING: {missing}")
    except LoadFailed as failure:
        found["failed"] = str(failure)
        tell(f"FAILED: {failure}")
    return found


def _words(run: Mapping[str, Any]) -> str:
    per_cpu, per_wall = run["rows"] / run["cpu_s"] / 1e3, run["rows"] / run["wall_s"] / 1e3
    return f"{per_cpu:7,.0f} k rows/CPU-s {per_wall:7,.0f} k rows/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One load: what it used, what the broker used meanwhile, and what was written."""

    rows: int
    used: Used
    broker_cpu_s: float
    output_bytes: int
    files: int


def _plain(run: LoadRun) -> dict[str, Any]:
    plain = asdict(run)
    used = plain.pop("used")
    return {**plain, **used, "cpu_s": run.used.cpu_s}


def _once(way: Way, origin: Origin, folder: Path) -> LoadRun:
    with _output(folder) as out, tempfile.TemporaryFile() as output:
        command = ways.once(way, _task(way, origin, out), folder)
        broker = meter.cpu_seconds([origin.broker.pid])
        process = _start(way, command, subprocess.DEVNULL, output)
        with _ended_at_last(process), TreeMeter(process.pid) as tree:
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise LoadFailed(f"not done within {TIMEOUT_S} s") from None
            used = tree.used()
        if code != 0:
            raise LoadFailed(f"exit code {code}: {_last_words(output)}")
        return check(origin, out, used, meter.cpu_seconds([origin.broker.pid]) - broker)


def _warm(way: Way, origin: Origin, folder: Path, runs: int) -> Iterator[LoadRun]:
    """Several loads in one session."""
    with tempfile.TemporaryFile() as errors:
        process = _start(way, ways.session(way, folder), subprocess.PIPE, errors, answers=True)
        with _ended_at_last(process), TreeMeter(process.pid) as tree:
            _expect(process, "ready", errors)
            for _ in range(runs):
                with _output(folder) as out:
                    meter.wait_for_quiet(meter.tree(process.pid), timeout_s=3, share=0.2)
                    broker = meter.cpu_seconds([origin.broker.pid])
                    tree.mark()
                    assert process.stdin is not None
                    process.stdin.write(json.dumps(asdict(_task(way, origin, out))).encode() + b"\n")
                    process.stdin.flush()
                    _expect(process, "done", errors)
                    used = tree.used()
                    yield check(origin, out, used, meter.cpu_seconds([origin.broker.pid]) - broker)


def _task(way: Way, origin: Origin, out: Path) -> Task:
    return Task(
        way=way.job,
        bootstrap=origin.broker.address,
        topic=TOPIC,
        registry=origin.registry,
        schema=SCHEMA.read_text(),
        out=str(out),
    )


def _start(
    way: Way, command: Sequence[str], stdin: int, output: IO[bytes], *, answers: bool = False
) -> subprocess.Popen[bytes]:
    return start_for_the_test_run(
        lambda ends_with_us: subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=ways.environment(way),
            stdin=stdin,
            stdout=subprocess.PIPE if answers else output,
            stderr=output,
            preexec_fn=ends_with_us,
        )
    )


@contextmanager
def _ended_at_last(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill it and everything it has started, whatever happens meanwhile."""
    try:
        yield
    finally:
        for pid in meter.tree(process.pid) if process.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _expect(process: subprocess.Popen[bytes], word: str, errors: IO[bytes]) -> None:
    """Read its output up to that line; LoadFailed when it ends, or does not come in time."""
    assert process.stdout is not None
    line, deadline = b"", time.monotonic() + TIMEOUT_S
    while not line.endswith(word.encode() + b"\n"):
        if not select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise LoadFailed(f"not {word} within {TIMEOUT_S} s: {_last_words(errors)}")
        some = os.read(process.stdout.fileno(), 4096)
        if not some:
            raise LoadFailed(f"it ended: {_last_words(errors)}")
        line += some


def _last_words(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-600:] or "it said nothing"


@contextmanager
def _output(folder: Path) -> Iterator[Path]:
    """A folder to write to, which does not exist yet and is gone afterwards."""
    out = folder / f"out-{uuid.uuid4().hex[:8]}"
    try:
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)


def check(origin: Origin, out: Path, used: Used, broker_cpu_s: float) -> LoadRun:
    """LoadFailed unless every hour has the rows that were produced in it, and no other hour has any."""
    files = data_files(out)
    found = rows_by_hour(files)
    if found != origin.rows_by_hour:
        raise LoadFailed(f"wrote {found}, produced were {dict(origin.rows_by_hour)}")
    return LoadRun(
        rows=origin.rows,
        used=used,
        broker_cpu_s=broker_cpu_s,
        output_bytes=sum(file.stat().st_size for file in files),
        files=len(files),
    )


def data_files(out: Path) -> list[Path]:
    """Every Parquet file of an hour, by its folder or, in a warehouse, by its name."""
    files = [*out.rglob("hour=*/*.parquet"), *out.rglob("rows/*/*T*.parquet")]
    found = [path for path in files if not any(part[0] in "_." for part in path.relative_to(out).parts)]
    return sorted([*found, *out.rglob("data/_time_hour=*/*.parquet")])


def rows_by_hour(files: Sequence[Path]) -> dict[str, int]:
    """Rows by the hour of a file, `2015-05-17T08`, which its folder or its name has."""
    found: Counter[str] = Counter()
    for path in files:
        if path.parent.name.startswith("hour="):
            date, clock = (part.partition("=")[2] for part in path.parts[-3:-1])
            hour = f"{date}T{int(clock):02d}"
        elif path.parent.name.startswith("_time_hour="):  # Iceberg's writer
            date, _, clock = path.parent.name.partition("=")[2].rpartition("-")
            hour = f"{date}T{clock}"
        else:
            hour = path.name[: len("2015-05-17T08")]
        found[hour] += pq.read_metadata(path).num_rows
    return dict(found)
