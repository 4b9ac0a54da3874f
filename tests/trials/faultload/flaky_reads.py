"""Runs inside the Python workers of executors, before everything else: imported by a `sitecustomize`.

Makes the reads of tasks fail: of the answers to Fetch requests, one in ten is cut off somewhere in the middle
of its bytes by closing the connection, or fails the whole task with an error that is none of ours; one in
twenty more comes late, so that Spark starts a speculative copy of the task. Owns nothing but `socket`.
Settings come by environment, because nothing else is there yet:

    FLAKY_PORTS   ports of the brokers, with commas between them; other connections are left alone
    FLAKY_RECORD  file; one letter per answer: r(ead), c(ut), f(ailed), s(low)
    FLAKY_STOP    file; while it is there every read goes well
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from typing import Any
from weakref import WeakKeyDictionary

FETCH = 1
FLAKY, SLOW = 0.10, 0.05
SLOW_S = 1.5

_connect, _sendall, _recv_into = socket.socket.connect, socket.socket.sendall, socket.socket.recv_into
_brokers: WeakKeyDictionary[socket.socket, bool] = WeakKeyDictionary()
"""Connections to brokers; True while an answer to a Fetch has not begun."""
_left: WeakKeyDictionary[socket.socket, int] = WeakKeyDictionary()
"""Bytes that come through a connection before it is cut."""
_chance = random.SystemRandom()  # not the same in every process forked from one
_ports = {int(port) for port in os.environ.get("FLAKY_PORTS", "").split(",") if port}


class FlakyRead(Exception):
    """Nobody's error: the task fails and Spark runs it again."""


def _note(letter: bytes) -> None:
    descriptor = os.open(os.environ["FLAKY_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, letter)
    os.close(descriptor)


def connect(self: socket.socket, address: Any) -> None:
    """Remember the connections that lead to a broker."""
    _connect(self, address)
    if isinstance(address, tuple) and address[1] in _ports:
        _brokers[self] = False


def sendall(self: socket.socket, data: Any, flags: int = 0) -> None:
    """Notice requests for records."""
    if self in _brokers and len(data) >= 6:
        _brokers[self] = struct.unpack_from(">h", data, 4)[0] == FETCH
    _sendall(self, data, flags)


def recv_into(self: socket.socket, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
    """Receive, unless it is this read's turn to fail."""
    if _brokers.get(self):
        _brokers[self] = False
        if not os.path.exists(os.environ["FLAKY_STOP"]):  # noqa: PTH110  # nothing else is imported yet
            _decide(self)
    if self in _left:
        allowed = min(_left[self], nbytes or len(buffer))
        if allowed == 0:
            self.shutdown(socket.SHUT_RDWR)
            return 0
        _left[self] -= allowed
        return _recv_into(self, memoryview(buffer)[:allowed], allowed, flags)
    return _recv_into(self, buffer, nbytes, flags)


def _decide(self: socket.socket) -> None:
    drawn = _chance.random()
    if drawn < FLAKY / 2:
        _note(b"c")
        _left[self] = _chance.choice([0, 3, 4, _chance.randrange(5, 2_000), _chance.randrange(5, 200_000)])
    elif drawn < FLAKY:
        _note(b"f")
        raise FlakyRead("this read was to fail")
    elif drawn < FLAKY + SLOW:
        _note(b"s")
        time.sleep(SLOW_S)
    else:
        _note(b"r")


if _ports:
    socket.socket.connect = connect  # type: ignore[method-assign, assignment]
    socket.socket.sendall = sendall  # type: ignore[method-assign, assignment]
    socket.socket.recv_into = recv_into  # type: ignore[method-assign, assignment]
