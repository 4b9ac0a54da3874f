"""Run the commands of one cell and take the broker's and the clients' figures meanwhile."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from tests.bench.broker import meter
from tests.bench.broker.system import Command, Figures
from tests.support import REPOSITORY, start_for_the_test_run

POLL_S = 0.05
SAMPLE_S = 0.2
TIMEOUT_S = 100.0
SETTLE_S = 0.3
"""The broker's last flush belongs to the cell."""


class CommandFailed(Exception):
    """A client ended with an error, or not in time; the message says which and its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU while a cell ran: all of it, and the busiest thread of each side."""

    wall_s: float
    broker_cpu_s: float
    client_cpu_s: float
    broker_thread_s: float
    client_thread_s: float
    broker_rss: int


@dataclass(slots=True)
class _Running:
    """A command that has been started."""

    command: Command
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    sampler: meter.Sampler
    cpu_s: float | None = None
    code: int = 0

    def words(self) -> str:
        """Everything it has printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


def run(commands: Sequence[Command], broker_pids: Sequence[int]) -> tuple[list[Figures], Usage]:
    """Start the commands at once; their figures in the same order once all have ended."""
    before = meter.cpu_seconds(broker_pids)
    broker = meter.Sampler.start(broker_pids)
    started = time.monotonic()
    running: list[_Running] = []
    try:
        running += [_start(command) for command in commands]
        _wait(running, broker, started)
    finally:
        for one in running:
            if one.cpu_s is None:
                one.process.kill()
                one.process.wait()
    wall = time.monotonic() - started
    time.sleep(SETTLE_S)
    broker.sample()
    figures = [one.command.parse(one.words()) for one in running]
    cpu = [done.cpu_s or one.cpu_s or 0.0 for done, one in zip(figures, running, strict=True)]
    for one in running:
        one.output.close()
    return figures, Usage(
        wall_s=wall,
        broker_cpu_s=meter.cpu_seconds(broker_pids) - before,
        client_cpu_s=sum(cpu),
        broker_thread_s=broker.busiest_thread_s(),
        client_thread_s=max(
            used * one.sampler.busiest_share() for used, one in zip(cpu, running, strict=True)
        ),
        broker_rss=broker.rss,
    )


def _start(command: Command) -> _Running:
    output = tempfile.TemporaryFile()  # noqa: SIM115  # read when the command has ended
    process = start_for_the_test_run(
        command.arguments,
        cwd=REPOSITORY,
        env={**os.environ, **command.environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    return _Running(command, process, output, meter.Sampler.start([process.pid]))


def _wait(running: list[_Running], broker: meter.Sampler, started: float) -> None:
    sampled = started
    while any(one.cpu_s is None for one in running):
        if time.monotonic() - started > TIMEOUT_S:
            raise CommandFailed(f"not done within {TIMEOUT_S:.0f} s: {_names(running)}")
        if time.monotonic() - sampled > SAMPLE_S:
            sampled = time.monotonic()
            broker.sample()
            for one in running:
                one.sampler.sample()
        for one in running:
            if one.cpu_s is None:
                _collect(one)
                if one.code != 0:
                    raise CommandFailed(f"exit code {one.code}: {_last_words(one)}")
        time.sleep(POLL_S)


def _collect(one: _Running) -> None:
    """Take the exit code and the exact CPU if it has ended; before it is reaped, its threads once more."""
    if os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return
    _, status, usage = os.wait4(one.process.pid, 0)
    one.cpu_s = usage.ru_utime + usage.ru_stime
    one.code = one.process.returncode = os.waitstatus_to_exitcode(status)


def _names(running: list[_Running]) -> str:
    waiting = [one for one in running if one.cpu_s is None]
    return "; ".join(f"{' '.join(one.command.arguments[-8:])} said {_last_words(one)}" for one in waiting)


def _last_words(one: _Running) -> str:
    return " / ".join(one.words().strip().splitlines()[-3:])[-600:] or "nothing"
