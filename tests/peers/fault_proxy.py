"""A proxy before an HTTP server, which loses, delays or falsifies what the test tells it to.

refuse      nothing is forwarded, the connection is closed
busy        nothing is forwarded, 503 with SlowDown
lose        forwarded, and the connection is closed without an answer
fail        forwarded, and the answer is 500
deny        forwarded, and the answer is 412, as for a condition that does not hold
conflict    forwarded, and the answer is 409, as of a catalog in which another commit was first
stall       forwarded, and no answer comes while the client waits
cut         forwarded, and the answer ends in the middle of its body
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Choice = Callable[[str, str], str | None]
"""Method and path with its query -> what happens to the request; None to leave it alone."""
_ANSWERS = {
    "busy": (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"),
    "fail": (500, b"<Error><Code>InternalError</Code><Message>We met an internal error.</Message></Error>"),
    "conflict": (409, b'{"error": {"message": "was first", "type": "CommitFailedException", "code": 409}}'),
    "deny": (412, b"<Error><Code>PreconditionFailed</Code><Message>It is there.</Message></Error>"),
}


class FaultProxy:
    """Listens on 127.0.0.1 for one upstream `host:port`; `fault` may be set at any time."""

    def __init__(self, upstream: str) -> None:
        self.fault: Choice = lambda method, path: None
        self.met: list[str] = []
        """The faults that requests have met, in order."""
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(upstream))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def times(self, count: int, kind: str, method: str, part: str = "") -> None:
        """Let the next `count` requests of this method, with this in their path, meet a fault."""
        left, lock = [kind] * count, threading.Lock()

        def choose(seen: str, path: str) -> str | None:
            with lock:
                return left.pop() if left and seen == method and part in path else None

        self.fault = choose

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handler(self, upstream: str) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.fault(self.command, self.path)
                if fault:
                    proxy.met.append(fault)
                if fault in ("refuse", "busy"):
                    return self._answer_with(fault)
                connection = http.client.HTTPConnection(upstream, timeout=60)
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    content = answer.read()
                except OSError:
                    return self._answer_with("refuse")
                finally:
                    connection.close()
                if fault in ("lose", *_ANSWERS):
                    return self._answer_with(fault)
                if fault == "stall":
                    proxy._closing.wait(60)
                    return self._answer_with("refuse")
                self._answer(answer.status, answer.getheaders(), content, cut=fault == "cut")
                return None

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

            def _answer_with(self, fault: str) -> None:
                if fault not in _ANSWERS:
                    self.close_connection = True
                    return
                status, content = _ANSWERS[fault]
                self._answer(status, [("Content-Length", str(len(content)))], content)

            def _answer(
                self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False
            ) -> None:
                self.send_response_only(status)
                sent = {name.lower() for name, _ in headers}
                for name, value in headers:
                    if name.lower() != "transfer-encoding":
                        self.send_header(name, value)
                if "content-length" not in sent:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    with suppress(BrokenPipeError, ConnectionResetError):  # a client that has given up
                        self.wfile.write(content[: len(content) // 2] if cut else content)
                self.close_connection = self.close_connection or cut

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        return Handler
