"""Loads and mirrors beside their peers, and how long an event takes to the warehouse.

    python -m tests.bench.load [--quick] [--cells load,mirror] [--only millrace,...]

Everything measured goes to scratch/bench-load/result.json, from which the page's half is made; `--only` and
`--cells` measure parts anew and keep the rest. The last line is COMPLETE, or PARTIAL with exit code 1 when
something is missing or has failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from millrace import __version__
from tests.bench import machine
from tests.bench.halves import PAGE, write_half
from tests.bench.load import cells, report, versions
from tests.support import REPOSITORY

SCRATCH = REPOSITORY / "scratch" / "bench-load"
Result = dict[str, Any]


def main() -> None:
    """Run what the command line asks for; write the half; exit 1 when something is not in it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    SCRATCH.mkdir(parents=True, exist_ok=True)
    kept = SCRATCH / ("quick.json" if options.quick else "result.json")
    wanted = _wanted(options)
    partial = wanted != cells.CELLS
    result: Result = json.loads(kept.read_text()) if partial and kept.exists() else {}
    run = {
        "command": _command(options),
        "busy": machine.busy_share(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": f"{__version__} ({_commit()})",
    }
    result |= {
        "machine": machine.machine(),
        "versions": versions.versions(),
        "runs": [*result.get("runs", []), run],
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="data-", dir=SCRATCH, ignore_cleanup_errors=True) as name:
        for cell, names in wanted.items():
            before = time.monotonic()
            cells.run(cell, names, Path(name), result, _tell, quick=options.quick)
            kept.write_text(json.dumps(result, indent=1))
            print(f"{cell} took {time.monotonic() - before:.0f} s", flush=True)
    page = SCRATCH / "quick.md" if options.quick else PAGE
    write_half(page, "load", report.half(result))
    bad = report.problems(result)
    print(f"{page.relative_to(REPOSITORY)} written after {(time.monotonic() - started) / 60:.1f} minutes")
    print("\n".join([*bad, "PARTIAL"]) if bad else "COMPLETE")
    sys.exit(1 if bad else 0)


def _command(options: argparse.Namespace) -> str:
    """Return the typed command: `make bench-load CELLS=mirror`."""
    words = ["make bench-load", *(["QUICK=1"] if options.quick else [])]
    if options.cells != list(cells.CELLS):
        words.append(f"CELLS={','.join(options.cells)}")
    if options.only != [name for some in cells.CELLS.values() for name in some]:
        words.append(f"ONLY={','.join(options.only)}")
    return " ".join(words)


def _options() -> argparse.Namespace:
    names = [name for some in cells.CELLS.values() for name in some]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything: a trial run")
    parser.add_argument("--cells", type=_names(cells.CELLS), default=list(cells.CELLS), metavar="CELL,...")
    parser.add_argument("--only", type=_names(names), default=names, metavar="NAME,...")
    return parser.parse_args()


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}: there are {', '.join(known)}")
        return [name for name in known if name in text.split(",")]

    return parse


def _wanted(options: argparse.Namespace) -> Mapping[str, tuple[str, ...]]:
    """The names to run of every cell that has any."""
    found = {
        cell: tuple(name for name in names if name in options.only)
        for cell, names in cells.CELLS.items()
        if cell in options.cells
    }
    return {cell: names for cell, names in found.items() if names}


def _tell(line: str) -> None:
    print(line, flush=True)


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no git"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; every process it had started has ended, and what was measured so far is kept")
