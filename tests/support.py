"""Real processes for tests: started on free ports, awaited by their ready line, ended by their own id.

Nothing here knows what a test wants to show; it only starts, awaits, kills and cleans up.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from millrace.process import start_child

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parent.parent
ROUNDS = int(os.environ.get("MILLRACE_ROUNDS", "2"))
"""Kill rounds per test: 2 in `make test`, more in `make soak`."""

WAIT_S = float(os.environ.get("MILLRACE_WAIT_S", "60"))
"""Limit of a test's wait for an expected event; it only ends a hung test, so busy machines have time."""
START_S = 180.0
"""Limit of a process's start or stop: a process that fails ends sooner."""


def start_for_the_test_run(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that is killed when the test process ends; the options are those of `Popen`."""
    return start_child(command, death_signal=signal.SIGKILL, **options)


def wait_until(what: str, condition: Callable[[], T], *, timeout_s: float = WAIT_S) -> T:
    """The condition's first true value; AssertionError naming `what` when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        # What is costly to ask is asked less often: the cores are for what it waits for.
        time.sleep(max(0.02, 2 * (now - asked)))


def child(work: Callable[[], object]) -> int:
    """Exit code of the work, done in a process that is forked for it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    with open(os.pidfd_open(pid), "rb") as ended:
        if not select.select([ended], [], [], START_S)[0]:
            os.kill(pid, signal.SIGKILL)  # locks that other threads held at the fork stay locked there
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@dataclass
class Clock:
    """A clock that a test sets by hand, in seconds."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Process:
    """One `millrace` command, or another module or program, as a real process; its output is kept for the
    report."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        module: str = "millrace.cli",
        program: Sequence[str] = (),
    ) -> None:
        self.arguments = list(arguments)
        command = [*(program or (sys.executable, "-m", module)), *self.arguments]
        self._process = start_for_the_test_run(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        """Everything printed so far, standard output and error together."""
        return "\n".join(self.lines)

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def ready(self, *, timeout_s: float = START_S) -> str:
        """HOST:PORT of the ready line; AssertionError with the output when the process ends before it."""

        def address() -> str | None:
            for line in list(self.lines):
                if line.startswith("ready: "):
                    return line.rsplit(" ", 1)[1]
            if not self.running:
                self._reader.join(5)
                raise AssertionError(f"{self.arguments} ended before it was ready:\n{self.output}")
            return None

        try:
            return wait_until(f"ready line of {self.arguments}", address, timeout_s=timeout_s) or ""
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, *, timeout_s: float = START_S) -> int:
        """SIGTERM; the exit code. A process that does not end in time is killed and that is an error."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.arguments} did not stop within {timeout_s} s:\n{self.output}"
            ) from None

    def signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, *, timeout_s: float = START_S) -> int:
        """The exit code, once the process has ended and its output is read."""
        code = self._process.wait(timeout_s)
        self._reader.join(5)
        return code


def run_python(
    *words: str,
    timeout_s: float = 2 * START_S,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with such words to its end: exit code, standard output and error, nothing checked."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_millrace(
    *arguments: str,
    timeout_s: float = 2 * START_S,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one `millrace` command in the same way. JSON must have the keys of docs/commands.md."""
    done = run_python("-m", "millrace.cli", *arguments, timeout_s=timeout_s, stdin=stdin, env=env)
    if "--json" in arguments:
        from tests.json_answers import check_output  # imports every command's package

        check_output(arguments, done.stdout)
    return done
