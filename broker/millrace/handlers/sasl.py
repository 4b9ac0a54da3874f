"""SaslHandshake v0 and v1, SaslAuthenticate v0 and v1: a client proves who it is.

The handshake names a mechanism, SaslAuthenticate carries its bytes. SaslHandshake v0, behind which bytes
would follow without a request around them, is told, because librdkafka looks for it, and refused. A login
that fails is answered after FAILED_AFTER_S, always with the same words, and its connection closed. Left out:
to prove it again on the same connection.
"""

from __future__ import annotations

import logging

from millrace.errors import ErrorCode
from millrace.handlers.table import Call, serves
from millrace.security.login import Login, LoginFailed
from millrace.security.rights import NOBODY, open_to_all
from millrace.wire import security_messages as messages
from millrace.wire.messages import ApiKey

log = logging.getLogger("millrace.security")
FAILED_AFTER_S = 0.1
"""Who guesses passwords waits this long for each."""
_FAILED = "authentication failed: check user, password and mechanism"


def _login(
    call: Call[messages.SaslHandshakeRequest] | Call[messages.SaslAuthenticateRequest],
) -> Login | None:
    """The client's login; None where it is none or is over."""
    client = call.received.client
    return client.login if client.access is NOBODY else None


@serves(
    ApiKey.SASL_HANDSHAKE,
    range(2),
    messages.SaslHandshakeRequest,
    messages.SaslHandshakeResponse,
    needs=open_to_all,
)
def sasl_handshake(call: Call[messages.SaslHandshakeRequest]) -> messages.SaslHandshakeResponse:
    login, mechanism = _login(call), call.request.mechanism
    told = tuple(login.mechanisms) if login is not None else ()
    if login is None or login.begun:
        code = ErrorCode.ILLEGAL_SASL_STATE
    elif call.received.api_version < 1:
        code = ErrorCode.UNSUPPORTED_VERSION
    elif mechanism not in login.mechanisms:
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    else:
        login.begin(mechanism)
        code = ErrorCode.NONE
    return messages.SaslHandshakeResponse(error_code=code, mechanisms=told)


@serves(
    ApiKey.SASL_AUTHENTICATE,
    range(2),
    messages.SaslAuthenticateRequest,
    messages.SaslAuthenticateResponse,
    needs=open_to_all,
)
def sasl_authenticate(
    call: Call[messages.SaslAuthenticateRequest],
) -> messages.SaslAuthenticateResponse | None:
    login, client = _login(call), call.received.client
    if login is None or not login.begun:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="send SaslHandshake v1 first, and once"
        )
    try:
        answer, user = login.answer(call.request.auth_bytes)
    except LoginFailed as error:
        log.warning("the login of %s has failed: %s", client.address, error)

        def refuse() -> None:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            call.answer(messages.SaslAuthenticateResponse(error_code=code, error_message=_FAILED))

        client.end()
        call.broker.mailbox.after(FAILED_AFTER_S, refuse)
        return None
    if user is not None:
        client.logged_in(f"User:{user}")
    return messages.SaslAuthenticateResponse(error_code=ErrorCode.NONE, auth_bytes=answer)


APIS = [sasl_handshake, sasl_authenticate]
