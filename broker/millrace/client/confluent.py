"""Clients made with librdkafka: their settings of connection and login, and the text of their errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError

from millrace.config import ClientSecurity
from millrace.errors import ConfigError, ErrorCode
from millrace.security.certificates import read_secret
from millrace.security.client import of_process, password, token

logger = logging.getLogger(__name__)
C = TypeVar("C")
SECURITY_SETTINGS = ("security.", "ssl.", "sasl.", "enable.ssl.", "oauthbearer_")
"""Prefixes of librdkafka's security settings."""
PATIENCE_S = 5.0
"""Longest time that a consumer waits for its new password before its next poll."""


def connected(client: Callable[[dict[str, Any]], C], settings: Mapping[str, Any]) -> C:
    """Return a Producer or Consumer with these settings, connected by the process's client file.

    Security settings among them replace the file's. After a failed login the password file is read again, so
    a new password needs no restart. Queued messages wait until then.
    """
    if any(name.startswith(SECURITY_SETTINGS) for name in settings):
        return client(dict(settings))
    security = of_process()
    made: list[Any] = []

    def read_password() -> None:
        try:
            made[0].set_sasl_credentials(security.user, password(security))
        except ConfigError as mistake:
            logger.error("the old password stays in use: %s", mistake)
        except RuntimeError as closed:
            logger.debug("the client was closed, and gets no new password: %s", closed)

    def on_error(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION and made:
            logger.warning("%s; the password is read again", error.str())
            # In another thread: confluent-kafka aborts the process if another callback follows, in the same
            # poll, a callback that has called its client.
            thread = threading.Thread(target=read_password, name="password", daemon=True)
            thread.start()
            if isinstance(made[0], _PatientConsumer):
                made[0].waits_for = thread

    if client is Consumer:
        client = cast(Callable[[dict[str, Any]], C], _PatientConsumer)
    callbacks = {"error_cb": on_error} if security.password_file else {}
    made.append(client({**librdkafka_settings(security), **callbacks, **settings}))
    made_client: C = made[0]
    return made_client


class _PatientConsumer(Consumer):
    """A consumer that lets other threads run between two polls; continuous polls would block them."""

    waits_for: threading.Thread | None = None

    def poll(self, *args: Any, **named: Any) -> Any:
        self._wait()
        return super().poll(*args, **named)

    def consume(self, *args: Any, **named: Any) -> Any:
        self._wait()
        return super().consume(*args, **named)

    def _wait(self) -> None:
        if self.waits_for is not None:
            self.waits_for.join(PATIENCE_S)
            self.waits_for = None


def librdkafka_settings(security: ClientSecurity) -> dict[str, Any]:
    """Return `security` as librdkafka's settings. They include the password: never log or print them.

    librdkafka asks for tokens, which are read from their file each time, as long as the client lives.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    settings: dict[str, Any] = {"security.protocol": security.protocol}
    if security.ca:
        settings["ssl.ca.location"] = security.ca
    if security.certificate:
        settings["ssl.certificate.location"] = security.certificate
        settings["ssl.key.location"] = security.key or security.certificate
    if security.key_password_file:
        settings["ssl.key.password"] = read_secret(security.key_password_file, "the key's password")
    if security.uses_token:
        settings |= {"sasl.mechanism": security.mechanism, "oauth_cb": lambda _: token(security)}
    elif security.uses_sasl:
        settings |= {"sasl.mechanism": security.mechanism, "sasl.username": security.user}
        settings["sasl.password"] = password(security)
    return settings


def text_of(error: BaseException | KafkaError) -> str:
    """Return librdkafka's text of an error, with advice where the text alone names no cause."""
    cause = error.args[0] if isinstance(error, BaseException) and error.args else error
    if not isinstance(cause, KafkaError):
        return str(cause)
    if cause.code() == ErrorCode.POLICY_VIOLATION:
        return f"{cause.str()}; a copy that the mirror makes takes messages in the cluster it is copied from"
    if cause.code() == ErrorCode.INVALID_RECORD:
        return f"{cause.str()}; a compacted topic takes only messages with a key: send a key"
    return str(cause.str())
