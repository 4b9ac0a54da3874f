"""Users made, listed and deleted by confluent-kafka's administration, where there is an authorizer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaException

from millrace.client.cluster_client import ClusterClient
from millrace.client.login import LoginRefused
from millrace.config import ClientSecurity
from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from tests.brokers import free_port
from tests.compat.brokers import start_broker
from tests.support import Process, wait_until

kafka: Any = confluent_kafka.admin
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
PASSWORDS = {"admin": "canary-admin-81", "carol": "canary-carol-18", "dave": "canary-dave-44"}


def outcome(futures: dict[str, Future[Any]], user: str) -> str:
    """The error's name; empty when all went well."""
    try:
        futures[user].result(20)
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def test_users_are_managed_also_by_a_broker_where_nobody_logs_in(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    session = Session.connect(zookeeper)
    Users(session, "no-logins").set_password("alice", PASSWORDS["admin"])
    session.close()
    rights: dict[str, Any] = {"security.authorizer": True, "security.super_users": ["User:ANONYMOUS"]}
    broker = start_broker(start, zookeeper, tmp_path, "no-logins", **rights)
    admin = kafka.AdminClient({"bootstrap.servers": broker.bootstrap})
    assert list(admin.describe_user_scram_credentials().result(20)) == ["alice"]
    deletion = kafka.UserScramCredentialDeletion("alice", kafka.ScramMechanism.SCRAM_SHA_256)
    assert outcome(admin.alter_user_scram_credentials([deletion]), "alice") == ""


@pytest.mark.parametrize("name_of_mechanism", MECHANISMS)
def test_a_client_makes_users_who_log_in_and_only_with_the_right_to(
    name_of_mechanism: str, start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    mechanism = kafka.ScramMechanism(MECHANISMS[name_of_mechanism])
    cluster, port = f"users-{name_of_mechanism}", free_port()
    session = Session.connect(zookeeper)
    for name in ("admin", "dave"):
        Users(session, cluster).set_password(name, PASSWORDS[name])
    session.close()
    settings: dict[str, Any] = {
        "listen": None,
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.protocol": "SASL_PLAINTEXT",
        "security.authorizer": True,
        "security.super_users": ["User:admin"],
    }
    broker = start_broker(start, zookeeper, tmp_path, cluster, **settings)

    def administration(user: str) -> Any:
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": PASSWORDS[user]}
        return kafka.AdminClient(
            {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT", **login}
        )

    def gets_in(name: str) -> bool:
        file = tmp_path / f"{name}.password"
        file.touch(mode=0o600)
        file.write_text(PASSWORDS[name])
        security = ClientSecurity(
            protocol="SASL_PLAINTEXT", user=name, password_file=str(file), mechanism=name_of_mechanism
        )
        try:
            with ClusterClient(f"127.0.0.1:{port}", security=security, timeout_s=5) as client:
                return bool(client.broker_ids())
        except LoginRefused:
            return False

    info = kafka.ScramCredentialInfo(mechanism, 8192)
    carol = kafka.UserScramCredentialUpsertion("carol", info, PASSWORDS["carol"].encode())
    weak = kafka.UserScramCredentialUpsertion("weak", kafka.ScramCredentialInfo(mechanism, 100), b"password")
    admin = administration("admin")
    assert not gets_in("carol")
    made = admin.alter_user_scram_credentials([carol, weak])
    assert (outcome(made, "carol"), outcome(made, "weak")) == ("", "UNACCEPTABLE_CREDENTIAL")
    wait_until("carol may log in", lambda: gets_in("carol"))
    described = admin.describe_user_scram_credentials(["carol", "nobody"])
    assert outcome(described, "nobody") == "RESOURCE_NOT_FOUND"
    (told,) = described["carol"].result(20).scram_credential_infos
    assert (told.mechanism, told.iterations) == (mechanism, 8192)

    mallory = kafka.UserScramCredentialUpsertion("admin", info, b"taken over")
    dave = administration("dave")
    refused = dave.alter_user_scram_credentials([mallory])
    assert outcome(refused, "admin") == "CLUSTER_AUTHORIZATION_FAILED"
    assert gets_in("admin"), "with the old password"

    deletion = kafka.UserScramCredentialDeletion("carol", mechanism)
    assert outcome(admin.alter_user_scram_credentials([deletion]), "carol") == ""
    wait_until("carol may not log in", lambda: not gets_in("carol"))
    assert outcome(admin.alter_user_scram_credentials([deletion]), "carol") == "RESOURCE_NOT_FOUND"
    assert not [password for password in PASSWORDS.values() if password in broker.process.output]
