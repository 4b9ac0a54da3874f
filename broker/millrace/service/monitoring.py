"""A process's metrics and health over HTTP or HTTPS: `/metrics` for Prometheus, `/healthz` for a supervisor.

It answers in its own threads. With an access list, `/metrics` requires a token with the role `metrics`.
Without that token, `/healthz` answers only whether the process is healthy. It defines no metric.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from millrace.config import parse_address
from millrace.errors import ConfigError, MillraceError
from millrace.security.certificates import ServerCertificates
from millrace.service.access import AccessList, Unauthenticated
from millrace.service.exposition import EscapingRegistry, text_of
from millrace.service.options import tls_of
from millrace.service.unproven import Unproven

logger = logging.getLogger("millrace.metrics")
MAX_REQUESTS = 16
"""Largest number of concurrent requests. When a further request arrives, the oldest request's connection is
closed."""
MAX_REQUESTS_OF_ADDRESS = 8
"""Most requests at once from one client address."""
REQUEST_TIMEOUT_S = 10
"""Time limit of a request, from its connection to the end of its answer."""
_GZIP_LEVEL = 1
"""The fastest: numbers become hardly smaller with more work."""
_JSON = ("Content-Type", "application/json")
_TEXT = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for every scrape is of no use."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    certificates: ServerCertificates | None = None

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, tuple[float, socket.socket]] = {}
        """Socket of a request -> time of its arrival, and a duplicate of the socket, which TLS takes over."""
        self._lock = threading.Lock()
        self._unproven = Unproven[socket.socket](MAX_REQUESTS, MAX_REQUESTS_OF_ADDRESS, lambda _: False)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= 2 * MAX_REQUESTS:  # threads that were cut off have not ended yet
                raise OSError("too many requests")
            self._open[request] = time.monotonic(), request.dup()
            if (oldest := self._unproven.enter(request, client_address[0])) is not None:
                self._unproven.leave(oldest)
                _cut_off(self._open[oldest][1])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        with self._lock:
            for came, client in self._open.values():
                if time.monotonic() - came > REQUEST_TIMEOUT_S:
                    _cut_off(client)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._unproven.leave(request)
            _, again = self._open.pop(request, (0, None))
        if again is not None:
            again.close()
        super().shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.certificates is None:
            return super().finish_request(request, client_address)
        # Here, in the request's own thread: a client with a slow handshake delays no other client.
        context = self.certificates.context("none")
        with context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)
            return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that disconnected or was disconnected is no event."""


def _cut_off(client: socket.socket) -> None:
    """Shut the connection down, which ends its thread's wait."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


class MonitoringServer:
    """HTTP server of `/metrics` and `/healthz`. It serves from `start` to `close`."""

    def __init__(
        self,
        listen: str,
        option: str,
        collector: Collector,
        health: Callable[[], tuple[bool, Mapping[str, Any]]],
        access: AccessList | None = None,
        certificates: ServerCertificates | None = None,
    ) -> None:
        """Listen on `listen`. Raise MillraceError, with the name of the `option` that gave the address, if
        that fails.

        `health` returns whether the process is healthy, and details. With `certificates` every connection
        uses TLS; they must have a context for clients without a certificate.
        """
        host, port = parse_address(listen, option)
        registry = EscapingRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            server = _Server6 if ":" in host else _Server
            self._http = make_server(host, port, _routes(registry, health, access), server, _Handler)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise MillraceError(f"cannot listen on {listen}: {reason}; give another {option}") from error
        self._http.certificates = certificates
        scheme = "http" if certificates is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def serve_metrics(
    collector: Collector,
    health: Callable[[], tuple[bool, Mapping[str, Any]]],
    listen: str,
    access_file: str = "",
    certificate: str = "",
    key: str = "",
) -> str:
    """Serve what the options of a command name, until the process ends. Return the URL.

    With an empty `listen` nothing is served. Raise ConfigError if other options are given in that case.
    """
    tls = tls_of(certificate, key)
    if not listen:
        if access_file or tls is not None:
            raise ConfigError("--access and --certificate are for the metrics: give --metrics-listen, too")
        return ""
    access = AccessList(access_file) if access_file else None
    certificates = ServerCertificates(tls, ["none"]) if tls is not None else None
    if certificates is not None:
        certificates.watch()
    server = MonitoringServer(listen, "--metrics-listen", collector, health, access, certificates)
    server.start()
    logger.info("metrics on %s/metrics", server.url)
    return server.url


def _routes(
    registry: EscapingRegistry,
    health: Callable[[], tuple[bool, Mapping[str, Any]]],
    access: AccessList | None,
) -> Wsgi:
    one_at_a_time = threading.Lock()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        def start_response(status: str, headers: list[tuple[str, str]]) -> Any:
            return start(status, [*headers, ("X-Content-Type-Options", "nosniff")])

        path = environ["PATH_INFO"]
        if path not in ("/metrics", "/healthz"):
            start_response("404 Not Found", [_JSON])
            return [b'{"paths": ["/metrics", "/healthz"]}\n']
        refusal = _refusal(access, environ.get("HTTP_AUTHORIZATION"))
        if path == "/healthz":
            well, details = health()
            start_response("200 OK" if well else "503 Service Unavailable", [_JSON])
            return [json.dumps({"healthy": well, **({} if refusal else details)}).encode() + b"\n"]
        if refusal:
            start_response("401 Unauthorized", [_JSON, ("WWW-Authenticate", 'Basic realm="millrace"')])
            return [json.dumps({"error": refusal}).encode() + b"\n"]
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [_JSON, ("Allow", "GET")])
            return [b'{"error": "only GET is allowed"}\n']
        with one_at_a_time:
            text = text_of(registry)
        headers = [_TEXT]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers.append(("Content-Encoding", "gzip"))
            text = gzip.compress(text, _GZIP_LEVEL)
        start_response("200 OK", headers)
        return [text]

    return answer


def _refusal(access: AccessList | None, authorization: str | None) -> str:
    """Return the reason to refuse metrics to a request with this header; empty when they are allowed."""
    if access is None:
        return ""
    try:
        name = access.name_of(authorization)
    except Unauthenticated as error:
        return str(error)
    return "" if access.allows(name, "metrics") else f"{name} lacks the role metrics"
