"""Cost of copying on this machine before anything is checked, parsed or acknowledged.

A leader receives bytes from one client, writes them, and sends them on out of its file; the followers write
what they receive. All of them flush every few megabytes, as they would with requests of that size in flight.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Condition
from typing import NamedTuple

from tests.bench.replay import VALUE_BYTES
from tests.bench.replication.cells import LARGE, Run

TITLE = "a bare relay"
SENT_AT_ONCE = 1_000_000
FLUSHED_AT_ONCE = 9_000_000
_SPAWN = multiprocessing.get_context("spawn")


def relay(factor: int, folder: Path, share: float) -> Run:
    """Take as many bytes as a cell of large batches through so many processes."""
    size = int(LARGE.messages * VALUE_BYTES * share)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        followers = [_Process(_follow, port, folder / f"follower-{number}") for number in range(1, factor)]
        to_followers = [listening.accept()[0] for _ in followers]
        client = _Process(_produce, port, size)
        producing = listening.accept()[0]
        leader = _Process(_lead, producing, to_followers, folder / "leader")
        for sock in (producing, *to_followers):
            sock.close()
        done = [process.done() for process in (client, leader, *followers)]
    cpu, units = [one.cpu_s for one in done], size / 1e9
    seconds = max(one.ended for one in done) - done[1].began
    return Run(
        rate=size / 1e6 / seconds,
        leader=cpu[1] / units,
        followers=sum(cpu[2:]) / units,
        client=cpu[0] / units,
        seconds=seconds,
        units=units,
        leader_thread=0,
    )


class _Done(NamedTuple):
    """Report of a process at its end; all processes take their times from one clock."""

    began: float
    ended: float
    cpu_s: float


class _Process:
    """A process that does one of the roles."""

    def __init__(self, role: Callable[..., None], *arguments: object) -> None:
        self._told, telling = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=_run, args=(telling, role, *arguments), daemon=True)
        self._process.start()
        telling.close()

    def done(self) -> _Done:
        """Wait for its end; EOFError if it failed."""
        done: _Done = self._told.recv()
        self._process.join()
        return done


def _run(telling: Connection, role: Callable[..., None], *arguments: object) -> None:
    began, before = time.perf_counter(), time.process_time()
    role(*arguments)
    telling.send(_Done(began, time.perf_counter(), time.process_time() - before))


def _produce(port: int, size: int) -> None:
    chunk = os.urandom(SENT_AT_ONCE)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for position in range(0, size, SENT_AT_ONCE):
            sock.sendall(chunk[: size - position])


def _follow(port: int, path: Path) -> None:
    buffer, written, flushed = memoryview(bytearray(SENT_AT_ONCE)), 0, 0
    with socket.create_connection(("127.0.0.1", port)) as sock, path.open("wb", buffering=0) as file:
        while received := sock.recv_into(buffer):
            written += file.write(buffer[:received])
            if written - flushed >= FLUSHED_AT_ONCE:
                os.fdatasync(file.fileno())
                flushed = written
        os.fdatasync(file.fileno())
    path.unlink()


def _lead(producing: socket.socket, to_followers: list[socket.socket], path: Path) -> None:
    buffer, written, is_over, changed = memoryview(bytearray(SENT_AT_ONCE)), 0, False, Condition()

    def written_beyond(position: int) -> int:
        """The end of the file once that is further, or nothing more comes."""
        with changed:
            changed.wait_for(lambda: is_over or written > position)
            return written

    with path.open("w+b", buffering=0) as file, ThreadPoolExecutor() as threads:

        def send(sock: socket.socket) -> None:
            sent = 0
            with sock:
                while (end := written_beyond(sent)) > sent:
                    sent += os.sendfile(sock.fileno(), file.fileno(), sent, end - sent)

        def flush() -> None:
            flushed = 0
            while (end := written_beyond(flushed + FLUSHED_AT_ONCE - 1)) > flushed:
                os.fdatasync(file.fileno())
                flushed = end

        others = [threads.submit(send, sock) for sock in to_followers] + [threads.submit(flush)]
        with producing:
            while received := producing.recv_into(buffer):
                file.write(buffer[:received])
                with changed:
                    written += received
                    changed.notify_all()
        with changed:
            is_over = True
            changed.notify_all()
        for other in others:
            other.result()
    path.unlink()
