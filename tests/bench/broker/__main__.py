"""The paper's evaluation again: Millrace and its peers side by side, one system at a time.

    python -m tests.bench.broker [--quick] [--only millrace,kafka] [--cells produce-50,consume]

Everything measured goes to scratch/bench-broker/result.json, from which the page is made; `--only` and
`--cells` measure parts anew and keep the rest. Exits 1 when a system is missing or a cell has failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.broker import cells, meter, raw, report
from tests.bench.broker.activemq import ActiveMq
from tests.bench.broker.apache_kafka import ApacheKafka
from tests.bench.broker.encrypted import EncryptedKafka, EncryptedMillrace
from tests.bench.broker.millrace import Millrace
from tests.bench.broker.rabbitmq import RabbitMq
from tests.bench.broker.run import CommandFailed
from tests.bench.broker.system import Client, Missing, System
from tests.bench.broker.tool_output import UnreadableOutput
from tests.bench.halves import PAGE, write_half
from tests.support import REPOSITORY

SCRATCH = REPOSITORY / "scratch" / "bench-broker"
SYSTEMS: Mapping[str, Callable[[], System]] = {
    "millrace": Millrace,
    "kafka": lambda: ApacheKafka(flushed=False),
    "kafka-flushed": lambda: ApacheKafka(flushed=True),
    "millrace-tls": EncryptedMillrace,
    "kafka-tls": EncryptedKafka,
    "rabbitmq-streams": lambda: RabbitMq(streams=True),
    "rabbitmq-classic": lambda: RabbitMq(streams=False),
    "activemq": lambda: ActiveMq(persistent=True),
    "activemq-memory": lambda: ActiveMq(persistent=False),
}
RAW_BYTES = 2 << 30
START_ATTEMPTS = 3
Result = dict[str, Any]


def main() -> None:
    """Run what the command line asks for; write the page; exit 1 when something is not in it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    SCRATCH.mkdir(parents=True, exist_ok=True)
    kept = SCRATCH / ("quick.json" if options.quick else "result.json")
    partial = options.only != list(SYSTEMS) or options.cells != list(cells.CELLS)
    result: Result = json.loads(kept.read_text()) if partial and kept.exists() else {}
    result["runs"] = [*result.get("runs", []), _this_run(options)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="data-", dir=SCRATCH, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not partial or "raw" not in result:
            _measure_machine(result, folder, quick=options.quick)
        for system in options.only:
            _run_system(SYSTEMS[system](), tuple(options.cells), folder, result, kept, quick=options.quick)
    page = SCRATCH / "quick.md" if options.quick else PAGE
    write_half(page, "broker", report.page(result))
    bad = report.problems(result)
    print(f"{page.relative_to(REPOSITORY)} written after {(time.monotonic() - started) / 60:.1f} minutes")
    print("\n".join(["NOT COMPLETE:", *bad]) if bad else "COMPLETE")
    sys.exit(1 if bad else 0)


def _this_run(options: argparse.Namespace) -> Mapping[str, Any]:
    """Describe this run: its command, its date, and how quiet the machine was."""
    words = ["make bench-broker", *(["QUICK=1"] if options.quick else [])]
    if options.only != list(SYSTEMS):
        words.append(f"ONLY={','.join(options.only)}")
    if options.cells != list(cells.CELLS):
        words.append(f"CELLS={','.join(options.cells)}")
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"command": " ".join(words), "busy": machine.busy_share(), "date": date}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the messages: a trial run")
    parser.add_argument("--only", type=_names(SYSTEMS), default=list(SYSTEMS), metavar="SYSTEM,...")
    parser.add_argument("--cells", type=_names(cells.CELLS), default=list(cells.CELLS), metavar="CELL,...")
    return parser.parse_args()


def _names(known: Any) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}: there are {', '.join(known)}")
        return [name for name in known if name in text.split(",")]

    return parse


def _measure_machine(result: Result, folder: Path, *, quick: bool) -> None:
    print("touching the memory, then the machine's own limits", flush=True)
    if not quick:
        raw.touch_memory(folder)
    result["machine"] = machine.machine()
    result["quick"] = quick
    result["raw"] = raw.measure(folder, RAW_BYTES // (4 if quick else 1), best_of=1 if quick else 3)


def _run_system(
    system: System, wanted: tuple[str, ...], folder: Path, result: Result, kept: Path, *, quick: bool
) -> None:
    """Every wanted cell of one system; its processes end and its data goes whatever happens."""
    entry = result.setdefault("systems", {}).setdefault(system.name, {"cells": {}})
    entry |= {"title": system.title, "flush": system.flush, "missing": None}
    data = folder / system.name
    data.mkdir()
    try:
        system.install()
        _start(system, data)
        meter.wait_for_quiet(system.pids())
        entry |= {"version": system.version, "idle_rss": meter.rss_bytes(system.pids())}
        cells.warm_up(system, quick=quick)
        for client, cell in cells.pairs(system, wanted):
            print(f"{system.name:17} {client.name:16} {cell:14}", end=" ", flush=True)
            entry["cells"].setdefault(client.name, {})[cell] = outcome = _outcome(system, client, cell, quick)
            print(report.one_line(outcome), flush=True)
    except Missing as missing:
        entry["missing"] = str(missing)
        print(f"{system.name:17} MISSING: {missing}", flush=True)
    finally:
        system.stop()
        shutil.rmtree(data, ignore_errors=True)
        kept.write_text(json.dumps(result, indent=1))


def _start(system: System, data: Path) -> None:
    """Start it, again when that fails: another process may have taken a port that was free a moment ago."""
    for attempt in range(1, START_ATTEMPTS + 1):
        folder = data / str(attempt)
        folder.mkdir()
        try:
            system.start(folder)
        except Missing:
            system.stop()
            if attempt == START_ATTEMPTS:
                raise
        else:
            return


def _outcome(system: System, client: Client, cell: str, quick: bool) -> dict[str, Any]:
    try:
        return cells.measure(system, client, cell, quick=quick).as_json()
    except (CommandFailed, UnreadableOutput, RuntimeError) as failure:
        return {"failed": str(failure)}


if __name__ == "__main__":
    main()
