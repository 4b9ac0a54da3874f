"""Child processes: whose end is theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.process import start_child
from tests.support import REPOSITORY, start_for_the_test_run, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = """
import subprocess, sys, threading
from millrace.process import start_child

def start():
    child = start_child(lambda ends_with_us: subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=ends_with_us))
    print(child.pid, flush=True)

thread = threading.Thread(target=start)
thread.start()
thread.join()
sys.stdin.read()
"""


def running(pid: int) -> bool:
    """True until a process has ended, whether somebody has waited for it or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_lives_on_when_the_thread_that_asked_for_it_ends() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(start_child(lambda ends: subprocess.Popen(SLEEP, preexec_fn=ends)))
        children.append(start_for_the_test_run(lambda ends: subprocess.Popen(SLEEP, preexec_fn=ends)))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    try:
        wait_until("the thread is gone", lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
        for child in children:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)  # a signal is there by then, if one was sent
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_child_ends_with_the_process_that_started_it(end: signal.Signals | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        if end is None:
            parent.communicate()
        else:
            parent.send_signal(end)
    wait_until("the child has ended", lambda: not running(child))


def test_what_a_start_raises_reaches_whoever_asked_and_the_next_one_starts() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        start_child(lambda ends: subprocess.Popen(["/no-such-program"], preexec_fn=ends))
    with start_child(lambda ends: subprocess.Popen(["true"], preexec_fn=ends)) as child:
        assert child.wait() == 0


def test_a_process_that_was_forked_starts_children_too() -> None:
    with start_child(lambda ends: subprocess.Popen(["true"], preexec_fn=ends)) as child:
        assert child.wait() == 0
    forked = os.fork()
    if not forked:
        with start_child(lambda ends: subprocess.Popen(["true"], preexec_fn=ends)) as child:
            os._exit(child.wait())
    assert os.waitpid(forked, 0)[1] == 0
