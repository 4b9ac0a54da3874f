"""Clients made with librdkafka: how they reach brokers and log in, and what librdkafka says of an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from millrace.config import ClientSecurity
from millrace.errors import ConfigError, ErrorCode
from millrace.security.certificates import read_secret
from millrace.security.client import of_process, password

log = logging.getLogger(__name__)
C = TypeVar("C")
SECURITY_SETTINGS = ("security.", "ssl.", "sasl.", "enable.ssl.", "oauthbearer_")
"""How the names of librdkafka's settings of security begin."""


def connected(client: Callable[[dict[str, Any]], C], settings: Mapping[str, Any]) -> C:
    """A Producer or Consumer with these settings, which reaches brokers as the process's client file says.

    Settings of security among them count for more than the file. After a login that failed the password is
    read again, so that a new one needs no restart; what waits in the queue goes on waiting meanwhile.
    """
    if any(name.startswith(SECURITY_SETTINGS) for name in settings):
        return client(dict(settings))
    security = of_process()
    made: list[Any] = []

    def on_error(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION and made:
            log.warning("%s; the password is read again", error.str())
            try:
                made[0].set_sasl_credentials(security.user, password(security))
            except ConfigError as mistake:
                log.error("the old password stays: %s", mistake)

    callbacks = {"error_cb": on_error} if security.uses_sasl else {}
    made.append(client({**librdkafka_settings(security), **callbacks, **settings}))
    made_client: C = made[0]
    return made_client


def librdkafka_settings(security: ClientSecurity) -> dict[str, str]:
    """The same in librdkafka's words, the password among them: for librdkafka, and to be shown to nobody."""
    if security.protocol == "PLAINTEXT":
        return {}
    settings = {"security.protocol": security.protocol}
    if security.ca:
        settings["ssl.ca.location"] = security.ca
    if security.certificate:
        settings["ssl.certificate.location"] = security.certificate
        settings["ssl.key.location"] = security.key or security.certificate
    if security.key_password_file:
        settings["ssl.key.password"] = read_secret(security.key_password_file, "the key's password")
    if security.uses_sasl:
        settings |= {"sasl.mechanism": security.mechanism, "sasl.username": security.user}
        settings["sasl.password"] = password(security)
    return settings


def text_of(error: BaseException | KafkaError) -> str:
    """What librdkafka says of an error, in the words of a person who has to act."""
    cause = error.args[0] if isinstance(error, BaseException) and error.args else error
    if not isinstance(cause, KafkaError):
        return str(cause)
    if cause.code() == ErrorCode.POLICY_VIOLATION:
        return f"{cause.str()}; a copy that the mirror makes takes messages in the cluster it is copied from"
    return str(cause.str())
