"""Jobs without Spark: their tasks run in processes of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.jobs import descendants
from tests.support import WAIT_S, start_for_the_test_run, wait_until

# The functions are there before the processes are forked.
PROGRAM = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from millrace.errors import MillraceError
from millrace_spark.jobs.here import Processes

def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return path

def begin(paths):
    begun, path = paths
    Path(begun).touch()
    return wait_for(path)

class NoTopic(MillraceError):
    def __init__(self, topic, reason):
        super().__init__(f"{topic}: {reason}")

def fail_at(number):
    if number == 1:
        raise NoTopic("A", "no such topic")
    return Path(sys.argv[1], str(number)).touch()

def die(_):
    os.kill(os.getpid(), signal.SIGKILL)

def pid_of(_):
    time.sleep(0.01)
    return os.getpid()

run_tasks = Processes(2)
"""


def run(code: str, *arguments: str) -> str:
    """Run code with `run_tasks` in a process of its own. Return its output."""
    command = [sys.executable, "-c", f"{PROGRAM}{code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tasks_run_in_other_processes_and_their_results_come_in_order() -> None:
    pids = "{*run_tasks(pid_of, range(40))}"
    assert run(f"print(len({pids}), os.getpid() in {pids}, run_tasks(abs, range(-4, 0)))") == (
        "2 False [4, 3, 2, 1]"
    )


def test_each_finished_task_is_counted_with_its_records_and_bytes() -> None:
    code = """
from millrace import steps
steps.OFTEN_S = 0
from millrace.steps import Count
class Copied:
    figures = 500, 2_000_000
def copy(_):
    return Copied()
lines = []
counted = Processes(2, Count(lines.append, "ranges"))
counted(copy, range(3))
counted._count.expect(0)
print(lines)
"""
    lines = run(code)
    assert lines.startswith("['0 of 3 ranges (0%), 0 s'")
    assert "'3 of 3 ranges (100%), 1,500 records, 6.0 MB, " in lines


def test_a_task_s_error_is_raised_as_it_is_once_every_task_has_run(tmp_path: Path) -> None:
    code = "try: run_tasks(fail_at, range(6))\nexcept MillraceError as error: print(error)"
    assert run(code, str(tmp_path)) == "A: no such topic"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "3", "4", "5"]


def test_a_killed_process_is_one_sentence() -> None:
    shown = run("try: run_tasks(die, range(3))\nexcept MillraceError as error: print(error)")
    assert shown.startswith(
        "a process with a task has ended (killed, or out of memory): see the job's output"
    )


def test_a_small_topic_does_not_wait_for_all_tasks_of_a_large_one(tmp_path: Path) -> None:
    # Every process has a task of the large topic. When one ends, it is the small topic's turn, for which the
    # remaining tasks of the large topic wait.
    code = """
begun, go, small = (str(Path(sys.argv[1], name)) for name in ("begun", "go", "small"))
with ThreadPoolExecutor(2) as threads:
    large = threads.submit(run_tasks, begin, [(begun, go), *[(begun, small)] * 20])
    wait_for(begun)
    time.sleep(0.3)  # without turns, all tasks of the large topic would be in the queue now
    one = threads.submit(run_tasks, begin, [(small, small)])
    time.sleep(0.3)
    Path(go).touch()
    print(len(one.result()), len(large.result()))
"""
    assert run(code, str(tmp_path)) == "1 21"


def test_the_processes_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    code = f"run_tasks(wait_for, [{str(tmp_path / 'never')!r}] * 2)"
    driver = start_for_the_test_run([sys.executable, "-c", PROGRAM + code])
    with driver:
        wait_until("both processes", lambda: len(descendants(driver.pid)) == 2)
        pids = descendants(driver.pid)
        driver.kill()
    wait_until("their end", lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_ctrl_c_ends_the_job_at_once_and_without_stack_traces(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    code = """
from millrace_spark.jobs import here
here.from_mapping = lambda *_: None
job = lambda run_tasks, _: run_tasks(begin, [(begun, "never")] * 2)
here.JOBS, begun = {"load": (object, job)}, sys.argv.pop()
here.main()
"""
    command = [sys.executable, "-c", PROGRAM.replace("run_tasks = Processes(2)", "") + code]
    command += ["load", "2", str(settings), str(tmp_path / "begun")]
    with start_for_the_test_run(command, stderr=subprocess.PIPE, start_new_session=True) as driver:
        wait_until("a task", (tmp_path / "begun").exists)
        os.killpg(driver.pid, signal.SIGINT)
        assert driver.stderr is not None
        line = b"step: load: 0 of 2 ranges (0%), 0 s\n"
        shown = re.sub(rb"\d+ s$", b"0 s", driver.stderr.read(), flags=re.MULTILINE)
        assert (shown, driver.wait(WAIT_S)) == (line, -signal.SIGINT)
