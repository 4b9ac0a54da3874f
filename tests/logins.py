"""SASL by single requests, so that a test sees each answer, and the settings of clients that log in."""

from __future__ import annotations

from typing import Any

from scramp import ScramClient

from millrace.client.connection import Connection
from millrace.client.metadata import VERSION as METADATA_VERSION
from millrace.client.metadata import decode_response, encode_request
from millrace.wire import security_messages as messages
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey


def ask(connection: Connection, api: ApiKey, version: int, body: bytes) -> memoryview:
    return connection.request(api, version, body, timeout_s=10)


def handshake(
    connection: Connection, mechanism: str = "SCRAM-SHA-512", version: int = 1
) -> messages.SaslHandshakeResponse:
    api = ApiKey.SASL_HANDSHAKE
    body = encode(messages.SaslHandshakeRequest(mechanism=mechanism), api, version)
    return decode(messages.SaslHandshakeResponse, api, version, ask(connection, api, version, body))


def authenticate(connection: Connection, data: bytes) -> messages.SaslAuthenticateResponse:
    api = ApiKey.SASL_AUTHENTICATE
    body = encode(messages.SaslAuthenticateRequest(auth_bytes=data), api, 1)
    return decode(messages.SaslAuthenticateResponse, api, 1, ask(connection, api, 1, body))


def log_in(connection: Connection, user: str, password: str) -> messages.SaslAuthenticateResponse:
    assert handshake(connection).error_code == 0
    client = ScramClient(["SCRAM-SHA-512"], user, password)
    first = authenticate(connection, client.get_client_first().encode())
    assert first.error_code == 0
    client.set_server_first(first.auth_bytes.decode())
    return authenticate(connection, client.get_client_final().encode())


def topics(connection: Connection) -> set[str | None]:
    answer = ask(connection, ApiKey.METADATA, METADATA_VERSION, encode_request(None))
    return {topic.name for topic in decode_response(answer).topics}


def log_in_plainly(connection: Connection, user: str, password: str) -> messages.SaslAuthenticateResponse:
    """By PLAIN."""
    assert handshake(connection, "PLAIN").error_code == 0
    return authenticate(connection, "\0".join(("", user, password)).encode())


def scram_settings(bootstrap: str, user: str, password: str) -> dict[str, Any]:
    """Settings of a client of librdkafka that logs in without TLS."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
    }
