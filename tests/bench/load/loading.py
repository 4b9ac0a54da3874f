"""Millions of messages into files or a table by hour, each way as its user runs it and in a warm session.

The ways take turns, so that a machine that changes its pace changes it for all. Every load is checked: as
many rows in every hour as were produced. A way that fails, or cannot be had, leaves its reason; the others go
on.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.readers import describe_table
from millrace_warehouse.storage import open_storage
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
    """Topic to load, and its broker."""

    broker: Broker
    registry: str
    rows_by_hour: Mapping[str, int]

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(self.rows_by_hour.values())


def measure(
    ways_from: Sequence[tuple[Way, Origin]], folder: Path, tell: Callable[[str], None], *, rounds: int
) -> dict[str, dict[str, Any]]:
    """Way -> the runs of its whole command and those in a warm session, as plain values."""
    found: dict[str, dict[str, Any]] = {
        way.name: {"title": way.title, "missing": None, "once": [], "warm": []} for way, _ in ways_from
    }

    @contextmanager
    def noted(way: Way) -> Iterator[None]:
        """Keeps the reason of a way that cannot go on."""
        try:
            yield
        except Missing as missing:
            found[way.name]["missing"] = str(missing)
            tell(f"{way.name:22} MISSING: {missing}")
        except LoadFailed as failure:
            found[way.name]["failed"] = str(failure)
            tell(f"{way.name:22} FAILED: {failure}")

    def going() -> list[tuple[Way, Origin]]:
        ended = {name for name, outcome in found.items() if outcome["missing"] or "failed" in outcome}
        return [(way, origin) for way, origin in ways_from if way.name not in ended]

    def keep(way: Way, form: str, run: LoadRun) -> None:
        found[way.name][form].append(_plain(run))
        per_cpu, per_wall = run.rows / run.used.cpu_s / 1e3, run.rows / run.used.wall_s / 1e3
        tell(f"{way.name:22} {form}: {per_cpu:7,.0f} k rows/CPU-s {per_wall:7,.0f} k rows/s")

    for number in range(rounds):
        for way, origin in going():
            if way.on_kafka and number:
                continue
            with noted(way):
                meter.wait_for_quiet([origin.broker.pid], timeout_s=5)
                keep(way, "once", _once(way, origin, folder))
    with ExitStack() as stack:
        sessions: dict[str, _Session] = {}
        for _ in range(rounds):
            for way, origin in going():
                if not way.warm:
                    continue
                with noted(way):
                    if way.name not in sessions:
                        sessions[way.name] = stack.enter_context(_Session(way, folder))
                    sessions[way.name].load(origin)  # Spark ends Python workers that were idle for a minute
                    keep(way, "warm", sessions[way.name].load(origin))
    return found


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
        return check(way, origin, out, used, meter.cpu_seconds([origin.broker.pid]) - broker)


class _Session:
    """One warm session of a way: it loads when it is told to; the context ends it."""

    def __init__(self, way: Way, folder: Path) -> None:
        self._way, self._folder, self._stack = way, folder, ExitStack()

    def __enter__(self) -> _Session:
        self._errors = self._stack.enter_context(tempfile.TemporaryFile())
        command = ways.session(self._way, self._folder)
        self._process = _start(self._way, command, subprocess.PIPE, self._errors, answers=True)
        self._stack.enter_context(_ended_at_last(self._process))
        _expect(self._process, "ready", self._errors)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self, origin: Origin) -> LoadRun:
        """Run one load and return the resources it used; the session goes on."""
        pid, stdin = self._process.pid, self._process.stdin
        assert stdin is not None
        with _output(self._folder) as out:
            meter.wait_for_quiet(meter.tree(pid), timeout_s=3, share=0.2)
            broker = meter.cpu_seconds([origin.broker.pid])
            with TreeMeter(pid) as tree:
                tree.mark()
                stdin.write(json.dumps(asdict(_task(self._way, origin, out))).encode() + b"\n")
                stdin.flush()
                _expect(self._process, "done", self._errors)
                used = tree.used()
            return check(self._way, origin, out, used, meter.cpu_seconds([origin.broker.pid]) - broker)


def _task(way: Way, origin: Origin, out: Path) -> Task:
    return Task(
        way=way.job,
        bootstrap=origin.broker.address,
        topic=TOPIC,
        registry=origin.registry,
        schema=SCHEMA.read_text(),
        hours=sorted(origin.rows_by_hour),
        out=str(out),
    )


def _start(
    way: Way, command: Sequence[str], stdin: int, output: IO[bytes], *, answers: bool = False
) -> subprocess.Popen[bytes]:
    return start_for_the_test_run(
        command,
        cwd=REPOSITORY,
        env=ways.environment(way),
        stdin=stdin,
        stdout=subprocess.PIPE if answers else output,
        stderr=output,
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


def check(way: Way, origin: Origin, out: Path, used: Used, broker_cpu_s: float) -> LoadRun:
    """LoadFailed unless every hour has the rows that were produced in it, no other hour has any, and a table
    that was to be published has them all.
    """
    files = data_files(out)
    found = rows_by_hour(files)
    if found != origin.rows_by_hour:
        raise LoadFailed(f"wrote {found}, produced were {dict(origin.rows_by_hour)}")
    if way.job == "millrace-table" and (rows := _published(out)) != origin.rows:
        raise LoadFailed(f"published {rows} rows, produced were {origin.rows}")
    return LoadRun(
        rows=origin.rows,
        used=used,
        broker_cpu_s=broker_cpu_s,
        output_bytes=sum(file.stat().st_size for file in files),
        files=len(files),
    )


def _published(out: Path) -> int:
    """Rows of the table that `millrace publish` made."""
    storage = open_storage(str(out))
    with connect(storage) as catalog:
        return describe_table(storage, catalog, TOPIC).rows


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
