"""Services of the operating system for a process: children that end with it, detection of forks, work that
signals cannot interrupt, open files.

It is independent of the children's work. Linux only where stated.
"""

from __future__ import annotations

import _thread
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from millrace.errors import MillraceError

T = TypeVar("T")
# Runs in the child and becomes the command. A `preexec_fn` would run in a copy of this process, where Python
# first drops the objects of the other threads: a socket that is shut down there is shut down here, too.
_TIED = """
import ctypes, os, signal, sys
death_signal, parent, *command = sys.argv[1:]
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))
if os.getppid() != int(parent):  # the parent has ended already: no signal will come
    os._exit(128 + int(death_signal))
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
    signal.signal(ignored, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)
"""


def start_child(
    command: Sequence[str], *, death_signal: signal.Signals = signal.SIGTERM, **options: Any
) -> subprocess.Popen[Any]:
    """Start a command that gets `death_signal` when this process ends for any reason (Linux).

    `options` are those of `subprocess.Popen`. If the program does not exist, the child ends with exit code
    127 and a line on its standard error. One thread starts all children: Linux sends the signal when the
    *thread* that started a child ends, so that thread must live as long as this process.
    """
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(int(death_signal)), str(os.getpid()), *command]
    return _starter.call(lambda: subprocess.Popen(tied, **options))


_forks = 0
"""Number of forks between the first process and this one."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class HomeProcess:
    """The process in which an object was created: a fork of the process copies the object's memory, not its
    threads.
    """

    __slots__ = ("_forks", "_what")

    def __init__(self, what: str) -> None:
        self._forks, self._what = _forks, what

    @property
    def is_here(self) -> bool:
        return self._forks == _forks

    def check(self) -> None:
        """Raise MillraceError in a forked child."""
        if self._forks != _forks:
            raise MillraceError(
                f"this {self._what} was made before its process was forked, and works only there: make one in"
                " each process, after the fork"
            )


def uninterrupted(work: Callable[[], T]) -> T:
    """Return the work's result. An exception of a signal handler ends the wait, and never the work halfway.

    Python runs signal handlers in the main thread, between any two steps, so the work has its own thread.
    """
    outcome: Future[T] = Future()
    running = _thread.allocate_lock()
    running.acquire()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            running.release()

    try:
        _thread.start_new_thread(run, ())  # in one step: `Thread.start` has many
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        run()
    running.acquire()  # a signal may end this wait; that of a Future would then raise an error of its own
    return outcome.result()


class _Starter:
    """Runs functions in one thread, which ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def call(self, function: Callable[[], T]) -> T:
        with self._lock:
            # A fork copies only the thread that called it.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="starter of children", daemon=True)
                self._thread.start()
        future: Future[T] = Future()
        self._calls.put((function, future))
        return future.result()

    def _run(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del function, future  # must not be kept until the next call


_starter = _Starter()


class Child:
    """One started command: its output goes to a file, its `ready:` line can be awaited."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        umask: int = -1,
    ) -> None:
        """Start the child; `environment` is added to this process's own, and `umask` -1 means
        this process's.
        """
        self.name = name
        self.log = log
        self.tail: deque[str] = deque(maxlen=20)
        self.address: str | None = None
        """HOST:PORT of the child's ready line, once the child has printed it."""
        # A session of its own: Ctrl-C reaches only the supervisor, which then stops children in order.
        self._process = start_child(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            umask=umask,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._copy_output, name=f"output of {name}", daemon=True)
        self._reader.start()

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self.log.open("a", buffering=1) as log:
            for line in output:
                log.write(line)
                self.tail.append(line.rstrip("\n"))
                if line.startswith("ready: "):
                    self.address = line.split()[-1]

    @property
    def exit_code(self) -> int | None:
        """Exit code of the child: None while it runs, negative for a signal."""
        return self._process.poll()

    def wait_until_ready(self, timeout_s: float) -> str:
        """Return HOST:PORT of the ready line.

        Raise MillraceError if the child ends first or takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while self.address is None:
            if self.exit_code is not None:
                raise MillraceError(f"{self.name} ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise MillraceError(f"{self.name} is not ready after {timeout_s:.0f} s; see {self.log}")
            time.sleep(0.02)
        return self.address

    def last_words(self) -> str:
        """Return the last line that the child printed, or its exit code when it printed nothing."""
        self._reader.join(1)
        return (
            self.tail[-1].removeprefix("millrace: ")
            if self.tail
            else f"exit code {self.exit_code}, no output"
        )

    def kill(self) -> None:
        """Send SIGKILL; return once the child has ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join(1)

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, then SIGKILL after `timeout_s`; return once the child has ended."""
        end(self._process, timeout_s)
        self._reader.join(1)


def end(process: subprocess.Popen[Any], timeout_s: float) -> None:
    """Send SIGTERM, then SIGKILL after `timeout_s`; return once the process has ended."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def allow_open_files() -> None:
    """Raise this process's soft limit of open files to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
