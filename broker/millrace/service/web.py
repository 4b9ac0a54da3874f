"""Runs a web application in the foreground: its own socket, a ready line, a clean end on SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import Any

import click
import uvicorn

from millrace.config import parse_address
from millrace.errors import MillraceError

_STOP_TIMEOUT_S = 5


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            click.echo(self._ready)
            sys.stdout.flush()


def serve(app: Any, listen: str, what: str) -> None:
    """Serve an ASGI application on HOST:PORT until SIGTERM or SIGINT; prints `ready: WHAT on HOST:PORT`.

    Port 0 takes a free one. Raises MillraceError when the address cannot be taken.
    """
    host, port = parse_address(listen, "--listen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise MillraceError(f"cannot listen on {listen}: {reason}; choose another --listen") from error
    # Connections inherit it. asyncio would set it, but not on sockets made without naming the protocol; and
    # without it the body of every answer waits 40 ms for the client to acknowledge the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=_STOP_TIMEOUT_S,
    )  # fmt: skip
    # uvicorn repeats the signal that stopped it once it has stopped; this makes that the end, with code 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    shown = f"[{host}]" if ":" in host else host
    _Server(config, f"ready: {what} on {shown}:{listener.getsockname()[1]}").run([listener])


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the server has its own handler while it runs."""
