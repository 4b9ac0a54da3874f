"""A fault load that stands still says who waits for what, and ends with everything it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY, start_for_the_test_run, wait_until
from tests.trials.faultload.waiting import who_waits

STANDS_STILL = """
import ctypes, os, subprocess, sys, threading
from pathlib import Path
from tests.trials.faultload.__main__ import Run
from tests.trials.faultload.limits import StepLimits, end_on_signals
from tests.trials.faultload.waiting import shim

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as main does
folder, limit_s = Path(sys.argv[1]), float(sys.argv[2])
os.environ.update(shim(folder))
run = Run(folder, loads=1, power_cuts=0, seed=7, yarn=False, kerberos=False)
end_on_signals(run.failed)
child = '''
import subprocess, sys, threading
def waits_for_godot():
    threading.Event().wait()
orphan = ["sh", "-c", sys.executable + " -c 'import time; time.sleep(600)' >/dev/null & echo $!"]
print(subprocess.run(orphan, stdout=subprocess.PIPE).stdout.decode(), end="", flush=True)
waits_for_godot()
'''
started = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
orphan = int(started.stdout.readline())
with run.limits.step("the wait for Godot", limit_s):
    print(started.pid, orphan, flush=True)
    started.wait()
"""


def stand_still(folder: Path, limit_s: float) -> tuple[subprocess.Popen[str], list[int]]:
    """A run whose only step waits for ever, and what it has started: a child, and a child left alone."""
    command = [sys.executable, "-c", STANDS_STILL, str(folder), str(limit_s)]
    process = start_for_the_test_run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


def all_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)


def test_a_step_that_takes_too_long_is_ended_after_a_report_of_who_waits(tmp_path: Path) -> None:
    process, started = stand_still(tmp_path, 2)
    report, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    wait_until("what it has started is gone", lambda: all_gone(started))
    lines = report.splitlines()
    assert lines[-1] == (
        "FAULT-LOAD FAILED: the wait for Godot took more than 2 s: who waits for what is above, and in"
        f" waiting.log (seed 7, everything is kept in {tmp_path})"
    )
    assert any(line.startswith("thread MainThread: ") and "wait" in line for line in lines)
    (at,) = (n for n, line in enumerate(lines) if line.startswith(f"process {started[0]}, S"))
    assert any("in waits_for_godot" in line for line in lines[at : at + 8])
    assert any(line.startswith(f"process {started[1]}, S, child of {process.pid}: ") for line in lines)
    assert "the Spark master does not answer" in lines
    assert (tmp_path / "waiting.log").read_text().splitlines() == lines[:-1]


def test_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    process, started = stand_still(tmp_path, 600)
    process.send_signal(signal.SIGINT)
    report, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert report == f"FAULT-LOAD FAILED: SIGINT (seed 7, everything is kept in {tmp_path})\n"
    wait_until("what it has started is gone", lambda: all_gone(started))


def test_the_report_names_workers_and_applications_of_spark(tmp_path: Path) -> None:
    state = {
        "workers": [{"id": "worker-1", "state": "DEAD", "cores": 2, "coresused": 0}],
        "activeapps": [
            {"id": "app-7", "name": "millrace load", "state": "WAITING", "cores": 0, "duration": 31_400}
        ],
    }
    assert list(who_waits(tmp_path, state))[-2:] == [
        "Spark worker worker-1: DEAD, 0 of 2 cores used",
        "Spark application app-7 'millrace load': WAITING, 0 cores, for 31 s",
    ]
