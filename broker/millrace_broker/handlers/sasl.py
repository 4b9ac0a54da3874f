"""SaslHandshake v0 and v1, SaslAuthenticate v0 and v1: a client logs in, and logs in again before its login
expires.

The handshake names a mechanism, SaslAuthenticate carries its bytes. After SaslHandshake v0, bytes would
follow that are in no request. This version is listed, because librdkafka looks for it, and refused. A failed
login is answered after FAILED_AFTER_S, always with the same text, and its connection is closed. If a login
has a limited lifetime, SaslAuthenticate v1 states that time, and the client may log in again as the same
user; its other requests are served meanwhile.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from millrace.errors import ErrorCode
from millrace.wire import security_messages as messages
from millrace_broker.handlers.table import Call, serves
from millrace_broker.security.login import MAX_FRAME_BYTES, Exchange, LoginFailed
from millrace_broker.security.rights import open_to_all

logger = logging.getLogger("millrace.security")
FAILED_AFTER_S = 0.1
"""Seconds before a failed login is answered, so that guessing passwords takes long."""
_FAILED = "authentication failed: check user, password and mechanism"


@serves(range(2), messages.SaslHandshakeRequest, messages.SaslHandshakeResponse, needs=open_to_all)
def sasl_handshake(call: Call[messages.SaslHandshakeRequest]) -> messages.SaslHandshakeResponse:
    login, mechanism = call.received.client.login, call.request.mechanism
    offered = tuple(login.mechanisms) if login is not None else ()
    if login is None or not login.may_begin:
        code = ErrorCode.ILLEGAL_SASL_STATE
    elif call.received.api_version < 1:
        code = ErrorCode.UNSUPPORTED_VERSION
    elif mechanism not in login.mechanisms:
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    else:
        login.begin(mechanism)
        code = ErrorCode.NONE
    return messages.SaslHandshakeResponse(error_code=code, mechanisms=offered)


@serves(range(2), messages.SaslAuthenticateRequest, messages.SaslAuthenticateResponse, needs=open_to_all)
def sasl_authenticate(
    call: Call[messages.SaslAuthenticateRequest],
) -> messages.SaslAuthenticateResponse | None:
    login, message = call.received.client.login, call.request.auth_bytes
    exchange = login.take() if login is not None else None
    if exchange is None:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="send SaslHandshake v1 first, and once"
        )
    try:
        if len(message) > MAX_FRAME_BYTES:  # after a login, too, when other requests may be larger
            raise LoginFailed(f"with a message of {len(message)} bytes")
        if not exchange.slow or call.login_thread is None:
            return _answered(call, exchange, exchange.answer(message))

        def done(future: Future[bytes]) -> None:
            if not call.received.client.closed:
                try:
                    call.answer(_answered(call, exchange, future.result()))
                except LoginFailed as error:
                    _fail(call, error)
                except Exception:
                    logger.exception("a bug in the login of %s", call.received.client.address)
                    call.received.client.abort("a bug was met in its login")

        host = call.received.client.address.rpartition(":")[0]
        call.login_thread.answer(host, exchange, message, done)
    except LoginFailed as error:
        _fail(call, error)
    return None


def _answered(
    call: Call[messages.SaslAuthenticateRequest], exchange: Exchange, answer: bytes
) -> messages.SaslAuthenticateResponse:
    """Return the response to the client. Raise LoginFailed when the login fails."""
    client = call.received.client
    login = client.login
    assert login is not None, "the exchange is its"
    principal = login.answered(exchange)
    holds_ms = 0
    if principal is not None:
        client.logged_in(principal)
        holds_ms = int((login.holds_s or 0) * 1000)
    return messages.SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, auth_bytes=answer, session_lifetime=holds_ms
    )


def _fail(call: Call[messages.SaslAuthenticateRequest], error: LoginFailed) -> None:
    client = call.received.client
    logger.warning("the login of %s has failed: %s", client.address, error)
    if client.login is not None:
        client.login.fail()

    def refuse() -> None:
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        call.answer(messages.SaslAuthenticateResponse(error_code=code, error_message=_FAILED))

    client.end()
    call.broker.mailbox.after(FAILED_AFTER_S, refuse)
