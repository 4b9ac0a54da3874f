"""Waits of a fault load: its processes, the stacks of those in Python, Spark's applications.

For a run that stands still. Looks at /proc, asks Python processes for their stacks by a signal, and reads the
Spark master's page; changes nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.jobs import descendants

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Nobody else uses it: Airflow and its servers have meanings of their own for the usual ones."""
FRAMES = 6
ANSWER_S = 5.0
_LINE = 160
_SITE = """import os
import stacks_on_signal
if "FLAKY_PORTS" in os.environ:
    import flaky_reads
"""


def shim(folder: Path) -> dict[str, str]:
    """Environment that puts a process's stacks below `folder`, and its reads in danger where it is set so."""
    code, stacks = folder / "shim", folder / "stacks"
    for path in (code, stacks):
        path.mkdir()
    for name in ("flaky_reads.py", "stacks_on_signal.py"):
        shutil.copyfile(Path(__file__).with_name(name), code / name)
    (code / "sitecustomize.py").write_text(_SITE)
    return {
        "PYTHONPATH": os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "STACKS_FOLDER": str(stacks),
        "STACKS_SIGNAL": str(int(STACKS_SIGNAL)),
    }


def who_waits(folder: Path, spark: dict[str, Any] | None) -> Iterator[str]:
    """Lines for people; `spark` is what the master says of itself, None when it does not answer."""
    yield from _our_threads()
    yield from _processes(folder / "stacks")
    yield from _applications(spark)


def _our_threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        frames = traceback.extract_stack(frame)[::-1][:FRAMES]
        where = " < ".join(f"{each.name} {Path(each.filename).name}:{each.lineno}" for each in frames)
        yield f"thread {names.get(number, number)}: {where}"


def _processes(stacks: Path) -> Iterator[str]:
    pids = descendants(os.getpid())
    asked = {pid: stacks / str(pid) for pid in pids if _catches(pid)}
    before = {pid: _size(file) for pid, file in asked.items()}
    for pid in asked:
        with suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline and any(_size(asked[pid]) <= before[pid] for pid in asked):
        time.sleep(0.1)
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            yield f"process {pid}, {_state(pid)}: {_command(pid)}"
            if pid in asked:
                yield from _innermost(asked[pid].read_bytes()[before[pid] :].decode(errors="replace"))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _innermost(stacks: str) -> Iterator[str]:
    """Yield the newest frames of each thread in faulthandler's output; the main thread comes last."""
    left = 0
    for line in stacks.splitlines():
        left = FRAMES + 1 if "(most recent call first)" in line else left - 1
        if left > 0 and line.strip():
            yield f"    {line}"


def _applications(spark: dict[str, Any] | None) -> Iterator[str]:
    if spark is None:
        yield "the Spark master does not answer"
        return
    for worker in spark["workers"]:
        cores = f"{worker['coresused']} of {worker['cores']} cores used"
        yield f"Spark worker {worker['id']}: {worker['state']}, {cores}"
    for application in spark["activeapps"]:
        cores, seconds = application["cores"], application["duration"] / 1000
        yield (
            f"Spark application {application['id']} {application['name']!r}: {application['state']},"
            f" {cores} cores, for {seconds:.0f} s"
        )


def _catches(pid: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False


def _state(pid: int) -> str:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{words[0]}, child of {words[1]}"


def _command(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    short = [word for word in words if not word.startswith(("-X", "-D", "-cp")) and "/jars/" not in word]
    return " ".join(" ".join(short).split())[:_LINE]
