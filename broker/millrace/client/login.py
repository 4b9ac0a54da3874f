"""A client's login by SASL, in SaslHandshake v1 and SaslAuthenticate v1: by SCRAM, PLAIN or OAUTHBEARER.

With SCRAM the broker, too, proves that it has the user's credential. PLAIN sends the password, and
OAUTHBEARER a token: both are for TLS only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scramp import ScramClient, ScramException

from millrace.config import ClientSecurity
from millrace.errors import ErrorCode, MillraceError
from millrace.security.client import password, token
from millrace.wire import security_messages as messages
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import error_name
from millrace.wire.messages import ApiKey

_VERSION = 1
Ask = Callable[[int, int, bytes], memoryview]
"""API, version and body of a request -> the body of its response."""
T = TypeVar("T")


class LoginRefused(MillraceError):
    """The broker refuses the login, so a retry is of no use."""


def log_in(ask: Ask, security: ClientSecurity, address: str) -> int:
    """Log in; return the login's lifetime in ms, 0 for as long as the connection. Raise LoginRefused."""
    handshake = _exchanged(
        ask,
        ApiKey.SASL_HANDSHAKE,
        messages.SaslHandshakeRequest(mechanism=security.mechanism),
        messages.SaslHandshakeResponse,
    )
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms)
        raise LoginRefused(
            f"the broker at {address} does not offer {security.mechanism}: set mechanism to one of {offered}"
        )
    if handshake.error_code:
        raise LoginRefused(
            f"the broker at {address} takes no login ({error_name(handshake.error_code)}): if its listener"
            " has protocol PLAINTEXT or SSL, set protocol to that"
        )
    ways = {"PLAIN": _plain, "OAUTHBEARER": _bearer}
    return ways.get(security.mechanism, _scram)(ask, security, address)


def _plain(ask: Ask, security: ClientSecurity, address: str) -> int:
    message = "\0".join(("", security.user, password(security)))
    return _authenticated(ask, message, security, address).session_lifetime


def _bearer(ask: Ask, security: ClientSecurity, address: str) -> int:
    message = f"n,,\1auth=Bearer {token(security)[0]}\1\1"
    return _authenticated(ask, message, security, address).session_lifetime


def _scram(ask: Ask, security: ClientSecurity, address: str) -> int:
    client = ScramClient([security.mechanism], security.user, password(security))
    try:
        first = _authenticated(ask, client.get_client_first(), security, address)
        client.set_server_first(first.auth_bytes.decode())
        final = _authenticated(ask, client.get_client_final(), security, address)
        client.set_server_final(final.auth_bytes.decode())
    except (ScramException, ValueError) as error:
        raise LoginRefused(
            f"the broker at {address} does not prove that it has the credential of {security.user!r}: {error}"
        ) from None
    return final.session_lifetime


def _authenticated(
    ask: Ask, message: str, security: ClientSecurity, address: str
) -> messages.SaslAuthenticateResponse:
    answer = _exchanged(
        ask,
        ApiKey.SASL_AUTHENTICATE,
        messages.SaslAuthenticateRequest(auth_bytes=message.encode()),
        messages.SaslAuthenticateResponse,
    )
    if answer.error_code:
        reason = answer.error_message or error_name(answer.error_code)
        if security.uses_token:
            raise LoginRefused(
                f"the broker at {address} refuses the token in {security.token_file}: {reason}; it may have"
                " ended, or be of another issuer or for another audience"
            )
        raise LoginRefused(
            f"the broker at {address} refuses user {security.user!r} by {security.mechanism}: {reason}; the"
            f" password is the first line of {security.password_file}"
        )
    return answer


def _exchanged(ask: Ask, api: ApiKey, request: object, response: type[T]) -> T:
    return decode(response, api, _VERSION, ask(api, _VERSION, encode(request, api, _VERSION)))
