"""Running a web application in the foreground: its own socket, a ready line, a clean end on SIGTERM.

A service keeps its state in its database alone, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from typing import Any

import click
import uvicorn

from millrace.config import TlsConfig, parse_address
from millrace.errors import MillraceError
from millrace.logs import start_logging
from millrace.process import allow_open_files
from millrace.security.certificates import ServerCertificates
from millrace.service.connections import Acceptor, HttpConnection
from millrace.signals import end_soon, stop_on_signals

logger = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5


class WebServer(uvicorn.Server):
    """Serves an ASGI application on HOST:PORT until SIGTERM, SIGINT or `stop`; port 0 takes a free port."""

    def __init__(self, app: Any, listen: str, what: str, tls: TlsConfig | None = None) -> None:
        """Listen; with `tls` every connection uses TLS. Raise ConfigError when its files cannot be used."""
        self._tls = _newest_context(ServerCertificates(tls, ["none"])) if tls is not None else None
        allow_open_files()
        host, port = parse_address(listen, "--listen")
        shown_host = f"[{host}]" if ":" in host else host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.listener = socket.create_server((host, port), family=family, backlog=256)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise MillraceError(f"cannot listen on {listen}: {reason}; choose another --listen") from error
        # Connections inherit this option. asyncio leaves it unset on sockets made without a protocol's name;
        # without it the body of every answer waits 40 ms for the client to acknowledge the head.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._what, self._failure = what, list[Exception]()
        self._ready = f"ready: {what} on {shown_host}:{self.listener.getsockname()[1]}"
        start_logging()
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            # httptools is faster, but loses the body of a request that offers HTTP/2, as Java's client does.
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )
        config.load()
        super().__init__(config)

    def start_beside(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Do the service's other work in a thread; if the work fails, the server stops as well."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                if not isinstance(error, MillraceError):  # its message is raised by `serve_until_stopped`
                    logger.exception("the %s has failed", name)
                self._failure.append(error)
                self.stop()  # an incomplete service must not continue to answer
                end_soon(1)

        thread = threading.Thread(target=run, name=name)
        thread.start()
        return thread

    def serve_until_stopped(self) -> None:
        """Serve requests. Raise MillraceError when the work of `start_beside` has failed."""
        stop_on_signals(self.stop, limited=True)
        self.run([])
        if self._failure:
            raise MillraceError(f"the {self._what} stopped: {self._failure[0]}")

    def stop(self) -> None:
        """Answer the requests received so far, then end. Callable from any thread, also before serving."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections by `Acceptor`: uvicorn has no limits and lets handshakes take a minute."""
        await super().startup(sockets)
        acceptor = Acceptor(self.listener, self._tls, self._new_connection)
        self.servers.append(acceptor)  # type: ignore[arg-type]
        acceptor.open()
        click.echo(self._ready)
        sys.stdout.flush()

    def _new_connection(self) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)


def _newest_context(certificates: ServerCertificates) -> ssl.SSLContext:
    """Return a context that gives each connection the current certificates."""

    def take_newest(connection: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        connection.context = certificates.context("none")

    context = certificates.context("none")
    context.sni_callback = take_newest  # called in every handshake, also where the client names no host
    certificates.watch()
    return context
