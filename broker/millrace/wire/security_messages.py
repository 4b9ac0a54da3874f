"""The requests and responses by which a client proves who it is, as values; see `wire.messages`."""

from __future__ import annotations

from millrace.wire.fields import Message, array, data, i16, i64, string


class SaslHandshakeRequest(Message):
    mechanism: str = string()


class SaslHandshakeResponse(Message):
    error_code: int = i16()
    mechanisms: tuple[str, ...] = array(string())


class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = data()


class SaslAuthenticateResponse(Message):
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)
    auth_bytes: bytes = data(default=b"")
    session_lifetime: int = i64(since=1, default=0)  # ms; 0: the login holds as long as the connection
