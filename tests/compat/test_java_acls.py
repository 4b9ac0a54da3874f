"""Apache Kafka's own tools for rights and settings by TLS and logins: kafka-acls.sh, kafka-configs.sh."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from millrace_broker.security.scram import make_credential
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, login_settings, start_broker
from tests.peers.kafka import kafka_tool
from tests.support import Process, wait_until

PASSWORD = "long enough"
USERS = ("admin", "web", "stranger")
_SETTINGS = """\
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={ca}
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{user}" password="{password}";
"""


class Guarded:
    """A broker that asks for logins and rights; admin is its super user."""

    def __init__(self, broker: RunningBroker, logins: str, folder: Path, ca: str) -> None:
        self.broker, self.logins, self._folder = broker, logins, folder
        for user in USERS:
            self.properties(user).write_text(_SETTINGS.format(user=user, password=PASSWORD, ca=ca))

    def properties(self, user: str) -> Path:
        return self._folder / f"{user}.properties"

    def tool(self, user: str, name: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run a tool as a user; return its output."""
        settings = {"ConsoleProducer": "--producer.config", "ConsoleConsumer": "--consumer.config"}.get(
            name, "--command-config"
        )
        file = str(self.properties(user))
        done = kafka_tool(name, "--bootstrap-server", self.logins, settings, file, *arguments, stdin=stdin)
        return (done.stdout + done.stderr).decode()

    def acls(self, *arguments: str, user: str = "admin") -> str:
        return self.tool(user, "AclCommand", *arguments)


@pytest.fixture(scope="module")
def guarded(
    needs_maven: None,
    start_for_module: Callable[..., Process],
    zookeeper: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Guarded:
    folder = tmp_path_factory.mktemp("java-acls")
    session = Session.connect(zookeeper)
    users = Users(session, "java-acls")
    for user in USERS:
        users.put(user, "SCRAM-SHA-512", make_credential("SCRAM-SHA-512", PASSWORD, 4096))
    session.close()
    plain, logins = (f"localhost:{free_port()}" for _ in range(2))
    authority = Authority(folder)
    settings = {"listen": None, "listeners.plain.listen": plain}
    settings |= login_settings(authority, logins, "User:admin")
    broker = start_broker(start_for_module, zookeeper, folder, "java-acls", 1, **settings)
    return Guarded(broker, logins, folder, authority.ca)


def test_kafka_acls_gives_producers_and_consumers_what_they_need(guarded: Guarded) -> None:
    guarded.broker.create_topic("java-events", 1, flush_ms=5)
    refused = guarded.tool("web", "ConsoleProducer", "--topic", "java-events", stdin=b"no\n")
    assert "TopicAuthorizationException" in refused
    told = guarded.acls("--add", "--allow-principal", "User:web", "--producer", "--topic", "java-events")
    assert "Adding ACLs for resource" in told
    assert "operation=WRITE" in told
    produced = guarded.tool("web", "ConsoleProducer", "--topic", "java-events", stdin=b"yes\n")
    assert "Exception" not in produced, produced
    read = (
        *("ConsoleConsumer", "--topic", "java-events", "--from-beginning", "--max-messages", "1"),
        *("--group", "java-readers", "--timeout-ms", "15000"),
    )
    assert "GroupAuthorizationException" in guarded.tool("web", *read)
    guarded.acls(
        "--add",
        "--allow-principal",
        "User:web",
        "--consumer",
        "--topic",
        "java-events",
        "--group",
        "java-readers",
    )
    assert "yes" in guarded.tool("web", *read).splitlines()


def test_kafka_acls_lists_and_removes_what_it_added(guarded: Guarded) -> None:
    prefixed = ("--topic", "java-", "--resource-pattern-type", "prefixed")
    guarded.acls("--add", "--allow-principal", "User:list", "--operation", "Read", *prefixed)
    guarded.acls(
        "--add",
        "--deny-principal",
        "User:list",
        "--deny-host",
        "10.0.0.1",
        "--operation",
        "All",
        "--topic",
        "java-x",
    )
    guarded.acls("--add", "--allow-principal", "User:list", "--operation", "Describe", "--cluster")
    listed = guarded.acls("--list", "--principal", "User:list")
    assert "patternType=PREFIXED" in listed
    assert re.search(r"host=10\.0\.0\.1, operation=ALL, permissionType=DENY", listed)
    assert "kafka-cluster" in listed
    match = guarded.acls("--list", "--topic", "java-x", "--resource-pattern-type", "match")
    assert "name=java-, patternType=PREFIXED" in match
    guarded.acls("--remove", "--force", "--allow-principal", "User:list", "--operation", "Read", *prefixed)
    assert "PREFIXED" not in guarded.acls("--list", "--principal", "User:list")
    assert guarded.acls("--list", "--principal", "User:list").count("User:list") >= 2


def test_kafka_acls_says_what_a_broker_refuses(guarded: Guarded) -> None:
    for arguments in (
        ("--list",),
        ("--add", "--allow-principal", "User:stranger", "--operation", "All", "--topic", "*"),
    ):
        assert "ClusterAuthorizationException" in guarded.acls(*arguments, user="stranger")
    every = guarded.acls("--list")
    assert "User:stranger" not in every


def test_kafka_configs_changes_settings_with_the_right_to_it(guarded: Guarded) -> None:
    guarded.broker.create_topic("java-settings", 1)

    def configs(user: str, *arguments: str) -> str:
        return guarded.tool(user, "ConfigCommand", "--topic", "java-settings", *arguments)

    change = ("--alter", "--add-config", "retention.ms=5000000")
    assert "TopicAuthorizationException" in configs("stranger", *change)
    assert "doesn't exist" in configs("stranger", "--describe")  # it is told of no such topic
    to_web = ("--add", "--allow-principal", "User:web", "--topic", "java-settings", "--operation")
    guarded.acls(*to_web, "AlterConfigs")
    assert "Exception" not in configs("web", *change)
    guarded.acls(*to_web, "Describe")  # else the tool, which looks for the topic first, is told of none
    wait_until("the setting", lambda: "retention.ms=5000000" in configs("web", "--describe"))


def test_kafka_configs_sets_lists_and_removes_quotas_of_users(guarded: Guarded) -> None:
    def configs(user: str, *arguments: str) -> str:
        return guarded.tool(user, "ConfigCommand", "--entity-type", "users", *arguments)

    quotas = "producer_byte_rate=1048576,request_percentage=20"
    assert "Exception" not in configs("admin", "--entity-name", "web", "--alter", "--add-config", quotas)
    assert "Exception" not in configs(
        "admin", "--entity-default", "--alter", "--add-config", "consumer_byte_rate=2097152"
    )
    listed = configs("admin", "--describe")
    assert re.search(r"user-principal 'web' are .*producer_byte_rate=1048576\.0", listed)
    assert re.search(r"default user-principal.* are consumer_byte_rate=2097152\.0", listed)
    assert "ClusterAuthorizationException" in configs(
        "stranger", "--entity-name", "stranger", "--alter", "--add-config", "producer_byte_rate=1e12"
    )
    configs("admin", "--entity-name", "web", "--alter", "--delete-config", "producer_byte_rate")
    left = configs("admin", "--entity-name", "web", "--describe")
    assert "request_percentage=20.0" in left
    assert "producer_byte_rate" not in left
    configs("admin", "--entity-name", "web", "--alter", "--delete-config", "request_percentage")
    configs("admin", "--entity-default", "--alter", "--delete-config", "consumer_byte_rate")
    assert "_rate" not in configs("admin", "--describe")
