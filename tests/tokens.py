"""An issuer of tokens for tests: its keys, the tokens it signs, and where its key set is fetched by HTTPS."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.certificates import Issued

ISSUER, AUDIENCE = "https://issuer.test/", "millrace"


class Issuer:
    """Signs with a key for each id; `key_set` is what it publishes."""

    def __init__(self, key_id: str = "first", bits: int = 2048) -> None:
        self.private = {key_id: rsa.generate_private_key(65537, bits)}
        self.key_id = key_id

    def add_key(self, key_id: str) -> None:
        self.private[key_id] = rsa.generate_private_key(65537, 2048)
        self.key_id = key_id

    def key_set(self, **changed: Any) -> dict[str, Any]:
        keys = [
            {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": key_id, "use": "sig", **changed}
            for key_id, key in self.private.items()
        ]
        return {"keys": keys}

    def claims(self, user: str = "alice", lasts_s: float = 300, **changed: Any) -> dict[str, Any]:
        now = time.time()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": now + lasts_s, "iat": now, **changed}
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self,
        user: str = "alice",
        lasts_s: float = 300,
        *,
        headers: Mapping[str, Any] | None = None,
        algorithm: str = "RS256",
        **changed: Any,
    ) -> str:
        return jwt.encode(
            self.claims(user, lasts_s, **changed),
            self.private[self.key_id],
            algorithm,
            {"kid": self.key_id, **(headers or {})},
        )


def message(token: str) -> bytes:
    """Return a client's login message with the token (RFC 7628)."""
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


class KeyServer:
    """Answers every GET with `body`, or leads on to `redirect`."""

    def __init__(self, port: int) -> None:
        self.url = f"https://localhost:{port}/keys"
        self.body = b""
        self.redirect = ""
        self.fetched = 0


@contextmanager
def key_server(issued: Issued) -> Iterator[KeyServer]:
    """Serves by HTTPS with this certificate until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.fetched += 1
            self.send_response(302 if served.redirect else 200)
            if served.redirect:
                self.send_header("Location", served.redirect)
            self.send_header("Content-Length", str(len(served.body)))
            self.end_headers()
            self.wfile.write(served.body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served = KeyServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
