"""CPU of whole process trees: children that have ended, children nobody waits for, groups."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.bench.load import accounting
from tests.bench.load.accounting import TreeMeter, group_of_thread, kind_of
from tests.support import start_for_the_test_run, wait_until

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
FORKS = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, {handler})
alive, held = os.pipe()
if os.fork() == 0:
    while time.process_time() < 0.4: pass
    time.sleep(1)  # long enough to be seen with all that it used, however busy the machine is
    os._exit(0)
os.close(held)
os.read(alive, 1)
time.sleep(0.2)
print("ended", flush=True)
sys.stdin.read()
"""


def process_is_idle(meter: TreeMeter) -> None:
    """Wait until a tenth of a second has used nothing."""

    def idle() -> bool:
        before = meter.used().cpu_s
        time.sleep(0.1)
        return meter.used().cpu_s == before

    wait_until("it is idle", idle)


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_a_child_that_has_ended_still_counts_whoever_waited_for_it(handler: str) -> None:
    with start_for_the_test_run(
        [sys.executable, "-c", FORKS.format(handler=handler)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        with TreeMeter(parent.pid) as meter:
            assert parent.stdout.readline() == b"ended\n"
            used = meter.used()
        parent.kill()

    assert 0.35 <= used.groups[accounting.PYTHON] <= 0.7
    assert used.cpu_s == pytest.approx(used.groups[accounting.PYTHON])
    assert used.peak_rss > 5_000_000


def test_a_mark_leaves_out_what_was_used_before_it() -> None:
    command = [sys.executable, "-c", BURN.format(seconds=0.3) + "input()"]
    with start_for_the_test_run(command, stdin=subprocess.PIPE) as process:
        with TreeMeter(process.pid) as meter:
            wait_until("it has worked", lambda: meter.used().cpu_s >= 0.25)
            process_is_idle(meter)
            meter.mark()
            after = meter.used()
        process.send_signal(signal.SIGKILL)

    assert after.cpu_s <= 0.05


def test_a_process_that_becomes_another_program_is_counted_once() -> None:
    script = BURN.format(seconds=0.2) + "import os; os.execv('/bin/sh', ['sh', '-c', 'read x'])"
    with start_for_the_test_run([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        with TreeMeter(process.pid) as meter:
            wait_until("it is a shell", lambda: meter.used().groups.get(accounting.OTHER, 0) >= 0.15)
            used = meter.used()
        process.kill()

    assert used.groups[accounting.OTHER] == used.cpu_s <= 0.4


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["/usr/lib/jvm/bin/java", "-cp", "jars"], "jvm"),
        (["/x/.venv/bin/python3", "-m", "pyspark.daemon", "pyspark.worker"], accounting.WORKERS),
        (["/x/.venv/bin/python3", "-m", "millrace_spark.jobs.daemon", "pyspark.worker"], accounting.WORKERS),
        (["python3.11", "jobs/load.py"], accounting.PYTHON),
        (["bash", "spark-submit"], accounting.OTHER),
        ([], accounting.OTHER),
    ],
)
def test_a_process_is_known_by_its_command_line(arguments: list[str], kind: str) -> None:
    assert kind_of(arguments) == kind


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("Executor task l", accounting.TASKS),
        ("stdout writer f", accounting.TASKS),
        ("C2 CompilerThre", accounting.COMPILER),
        ("GC Thread#0", accounting.COLLECTOR),
        ("G1 Conc#0", accounting.COLLECTOR),
        ("dispatcher-even", accounting.REST),
    ],
)
def test_a_thread_of_a_jvm_is_known_by_its_name(name: str, group: str) -> None:
    assert group_of_thread(name) == group
