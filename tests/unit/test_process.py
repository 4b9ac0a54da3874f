"""Child processes: whose end is theirs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.process import start_child
from tests.support import REPOSITORY, start_for_the_test_run, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = """
import sys, threading
from millrace.process import start_child

def start():
    child = start_child([sys.executable, "-c", "import time; time.sleep(600)"])
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
        children.append(start_child(SLEEP))
        children.append(start_for_the_test_run(SLEEP))

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


def test_what_a_start_raises_reaches_whoever_asked_and_the_next_one_starts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-folder"):
        start_child(["true"], cwd=tmp_path / "no-such-folder")
    with start_child(["true"]) as child:
        assert child.wait() == 0


def test_a_program_that_is_not_there_ends_at_once_and_is_named() -> None:
    with start_child(["no-such-program"], stderr=subprocess.PIPE, text=True) as child:
        assert child.communicate()[1] == "cannot start no-such-program: No such file or directory\n"
    assert child.returncode == 127


def test_a_child_has_the_signals_of_a_program_that_a_shell_starts() -> None:
    with start_child(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, text=True) as child:
        ignored = int(child.communicate()[0].split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


class Owned:
    """Shuts a socket down when nothing refers to it, as clients do that keep one for each thread."""

    def __init__(self, owned: socket.socket) -> None:
        self._socket = owned

    def __del__(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)


def test_a_start_leaves_alone_what_other_threads_own() -> None:
    ours, theirs = socket.socketpair()
    mine, ready, ended = threading.local(), threading.Event(), threading.Event()

    def own() -> None:
        mine.socket = Owned(ours)
        ready.set()
        ended.wait()

    thread = threading.Thread(target=own)
    thread.start()
    try:
        ready.wait()
        with start_child(["true"]) as child:
            assert child.wait() == 0
        theirs.send(b"still there")
        assert ours.recv(100) == b"still there"
    finally:
        ended.set()
        thread.join()
        ours.close()
        theirs.close()


def test_a_process_that_was_forked_starts_children_too() -> None:
    with start_child(["true"]) as child:
        assert child.wait() == 0
    forked = os.fork()
    if not forked:
        with start_child(["true"]) as child:
            os._exit(child.wait())
    assert os.waitpid(forked, 0)[1] == 0
