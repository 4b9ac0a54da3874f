"""Rights: independent clients may do what the rules say, from the moment they say it, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.client.cluster_client import LATEST
from millrace.client.connection import Connection, ConnectionFailed
from millrace.config import ClientSecurity
from millrace.errors import MillraceError, TopicAlreadyExists
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation
from millrace_broker.security.rights import ResourceType as Types
from tests.brokers import free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.integration.faults.wire import produce_body
from tests.integration.test_client_file import client_file
from tests.logins import scram_settings
from tests.page_view import EVENT, START
from tests.support import WAIT_S, Process, wait_until
from tests.unit.broker.asking import request_body

_admin: Any = confluent_kafka.admin  # it does not say which of its names are public
AclBinding, AclBindingFilter, AclOperation = _admin.AclBinding, _admin.AclBindingFilter, _admin.AclOperation
AclPermissionType, NewTopic = _admin.AclPermissionType, _admin.NewTopic
ResourcePatternType, ResourceType = _admin.ResourcePatternType, _admin.ResourceType
PASSWORD = "long enough"
USERS = ("admin", "writer", "reader", "stranger")


@dataclass
class Guarded:
    """A broker that asks for rights; who comes by its plain listener is a super user, as is admin."""

    broker: RunningBroker
    zookeeper: str
    logins: str

    def millrace(self, *arguments: str) -> str:
        """Run a command; return its output."""
        command = [sys.executable, "-m", "millrace.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def acls(self, *arguments: str) -> str:
        return self.millrace("acls", *arguments, "--bootstrap", self.broker.bootstrap)

    def settings(self, user: str) -> dict[str, Any]:
        return scram_settings(self.logins, user, PASSWORD)

    def admin(self, user: str) -> Any:
        return _admin.AdminClient(self.settings(user))

    def topic(self, name: str) -> str:
        return self.broker.create_topic(name, 1, flush_ms=5)


@pytest.fixture(scope="module")
def guarded(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    folder = tmp_path_factory.mktemp("acls")
    logins = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {
        "listen": None,
        "listeners.plain.listen": f"127.0.0.1:{free_port()}",
        "listeners.logins.listen": logins,
        "listeners.logins.protocol": "SASL_PLAINTEXT",
        "security.authorizer": True,
        "security.super_users": ["User:admin", "User:ANONYMOUS"],
    }
    broker = start_broker(start_for_module, zookeeper, folder, "rights", **settings)
    made = Guarded(broker, zookeeper, logins)
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    for user in USERS:
        at = ("--zookeeper", zookeeper, "--cluster", "rights", "--iterations", "4096")
        made.millrace("users", "create", user, "--password-file", str(password), *at)
    return made


def outcome(guarded: Guarded, user: str, topic: str) -> int:
    """The error of one message that a user sends; 0 when it is stored."""
    producer = confluent_kafka.Producer({**guarded.settings(user), "message.timeout.ms": 20_000})
    return sent(producer, topic)


def sent(producer: confluent_kafka.Producer, topic: str) -> int:
    codes: list[int] = []
    producer.produce(
        topic, b"x", on_delivery=lambda error, _: codes.append(0 if error is None else error.code())
    )
    assert producer.flush(30) == 0
    return codes[0]


def error_of(message: Any) -> int | None:
    """The code of a message that is an error; None for any other, and for none."""
    return message.error().code() if message is not None and message.error() is not None else None


def test_a_user_without_a_rule_may_do_nothing_and_one_with_it_that_alone(guarded: Guarded) -> None:
    topic = guarded.topic("orders")
    assert outcome(guarded, "writer", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.acls("allow", "User:writer", "write", "--topic", topic)
    assert outcome(guarded, "writer", topic) == 0
    assert outcome(guarded, "stranger", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED

    guarded.acls("allow", "User:reader", "read", "--topic-prefix", "ord", "--group", "g")
    assert outcome(guarded, "reader", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    read = {"group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**guarded.settings("reader"), **read})
    consumer.subscribe([topic])
    wait_until("the message", lambda: (m := consumer.poll(1.0)) and m.value() == b"x")
    consumer.commit(asynchronous=False)
    consumer.close()

    other = confluent_kafka.Consumer({**guarded.settings("reader"), "group.id": "another"})
    other.subscribe([topic])
    wait_until("the refusal", lambda: error_of(other.poll(1.0)) == KafkaError.GROUP_AUTHORIZATION_FAILED)
    other.close()


def test_a_right_that_is_taken_away_ends_under_traffic(guarded: Guarded) -> None:
    topic = guarded.topic("taken")
    guarded.acls("allow", "User:writer", "write", "--topic", topic)
    guarded.acls("allow", "User:reader", "read", "--topic", topic, "--group", "taken")
    producer = confluent_kafka.Producer({**guarded.settings("writer"), "linger.ms": 0})
    for _ in range(20):  # the broker serves what repeats in a way of its own
        assert sent(producer, topic) == 0
    consumer = confluent_kafka.Consumer(
        {**guarded.settings("reader"), "group.id": "taken", "fetch.wait.max.ms": 60_000, "fetch.min.bytes": 1}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
    assert consumer.poll(2.0) is None  # it waits in the broker now
    guarded.acls("remove", "User:reader", "read", "--topic", topic)
    assert sent(producer, topic) == 0
    assert error_of(consumer.poll(20.0)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    assert json.loads(guarded.acls("remove", "User:writer", "--json")) != []
    assert sent(producer, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_confluents_admin_client_adds_lists_and_deletes_rules(guarded: Guarded) -> None:
    admin = guarded.admin("admin")
    allow, literal = AclPermissionType.ALLOW, ResourcePatternType.LITERAL
    added = [
        AclBinding(
            ResourceType.TOPIC, "c-", ResourcePatternType.PREFIXED, "User:c", "*", AclOperation.READ, allow
        ),
        AclBinding(ResourceType.GROUP, "c", literal, "User:c", "10.0.0.1", AclOperation.READ, allow),
        AclBinding(
            ResourceType.BROKER,
            "kafka-cluster",
            literal,
            "User:c",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.DENY,
        ),
    ]
    for future in admin.create_acls(added).values():
        future.result(30)
    mine = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:c",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert sorted(map(str, admin.describe_acls(mine).result(30))) == sorted(map(str, added))
    about = AclBindingFilter(
        ResourceType.TOPIC,
        "c-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert added[0] in admin.describe_acls(about).result(30)
    wrong = AclBinding(ResourceType.TOPIC, "t", literal, "User:c", "*", AclOperation.IDEMPOTENT_WRITE, allow)
    with pytest.raises(KafkaException, match="no operation on a topic"):
        admin.create_acls([wrong])[wrong].result(30)
    (deleted,) = admin.delete_acls([mine]).values()
    assert len(deleted.result(30)) == 3
    assert admin.describe_acls(mine).result(30) == []


def test_a_user_without_rights_to_the_cluster_may_neither_see_nor_change_rules(guarded: Guarded) -> None:
    admin = guarded.admin("stranger")
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    allow = AclPermissionType.ALLOW
    mine = AclBinding(
        ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:stranger", "*", AclOperation.ALL, allow
    )
    # This library takes a refusal for a list without rules; the broker's own tests see the error.
    assert admin.describe_acls(every).result(30) == []
    before = guarded.acls("list", "--json")
    calls: list[Any] = [admin.create_acls([mine])[mine], *admin.delete_acls([every]).values()]
    for call in calls:
        with pytest.raises(KafkaException) as refused:
            call.result(30)
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert guarded.acls("list", "--json") == before != "[]\n"
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("mine", 1)])["mine"].result(30)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_that_may_not_be_known_is_answered_as_one_that_is_not_there(guarded: Guarded) -> None:
    guarded.topic("secret")
    admin = guarded.admin("stranger")
    assert admin.list_topics(timeout=20).topics == {}
    there, missing = (admin.list_topics(name, timeout=20).topics[name].error for name in ("secret", "absent"))
    assert there == missing == KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert outcome(guarded, "stranger", "secret") == outcome(guarded, "stranger", "absent")


def test_a_client_is_told_what_it_may_do_where_it_asks(guarded: Guarded) -> None:
    topic = guarded.topic("asked")
    guarded.acls("allow", "User:reader", "read", "--topic", topic, "--group", "asking")
    every = {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}

    def told(described: Any) -> set[str] | None:
        operations = described.authorized_operations
        return None if operations is None else {operation.name for operation in operations}

    def of(user: str, **asking: bool) -> list[set[str] | None]:
        admin = guarded.admin(user)
        names = confluent_kafka.TopicCollection([topic])
        futures = [
            *admin.describe_topics(names, **asking).values(),
            admin.describe_cluster(**asking),
            *admin.describe_consumer_groups(["asking"], **asking).values(),
        ]
        return [told(future.result(WAIT_S)) for future in futures]

    asking = {"include_authorized_operations": True}
    assert of("reader") == [None, None, None]
    on_topic, on_cluster, on_group = of("reader", **asking)
    assert on_topic == on_group == {"READ", "DESCRIBE"}
    assert not on_cluster
    on_topic, on_cluster, on_group = of("admin", **asking)
    assert on_topic == every
    assert on_group == {"READ", "DESCRIBE", "DELETE"}
    assert on_cluster == {"CLUSTER_ACTION", "IDEMPOTENT_WRITE", *every} - {"READ", "WRITE", "DELETE"}


def test_only_its_own_right_lets_append_a_mirrors_positions_and_the_command_gives_it(
    guarded: Guarded,
) -> None:
    printed = guarded.acls("allow", "User:copier", "mirror-write", "describe", "--topic", "copied")
    assert "allow MIRROR_WRITE on topic copied to User:copier from *" in printed
    rules = json.loads(guarded.acls("list", "--topic", "copied", "--json"))
    assert "mirror-write" in {rule["operation"] for rule in rules}
    # A client that does not know it shows it as unknown, and is not confused by it.
    every = AclBindingFilter(
        ResourceType.TOPIC,
        "copied",
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    admin = guarded.admin("admin")
    found = admin.describe_acls(every).result(30)
    assert {one.operation for one in found} == {AclOperation.UNKNOWN, AclOperation.DESCRIBE}


def test_producers_may_report_to_the_audit_and_not_count_for_it(guarded: Guarded) -> None:
    for name in ("audit", "audit-counts"):
        guarded.topic(name)
    guarded.acls("allow", "User:writer", "write", "--topic", "audit")
    assert outcome(guarded, "writer", "audit") == 0
    assert outcome(guarded, "writer", "audit-counts") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.acls("allow", "User:writer", "write", "--topic-prefix", "audit")
    assert outcome(guarded, "writer", "audit-counts") == 0
    guarded.acls("deny", "User:writer", "write", "--topic", "audit-counts")
    assert outcome(guarded, "writer", "audit-counts") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_refusals_and_changes_are_in_the_log_a_line_of_json_each(guarded: Guarded) -> None:
    topic = guarded.topic("logged")
    assert outcome(guarded, "stranger", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.acls("allow", "User:writer", "write", "--topic", topic)

    def told(verb: str) -> list[dict[str, Any]]:
        lines = guarded.broker.process.output.splitlines()
        return [
            json.loads(line.partition(f" {verb}: ")[2]) for line in lines if f"security: {verb}: " in line
        ]

    refused = [line for line in told("refused") if line.get("resources") == ["topic logged"]]
    assert refused[0]["principal"] == "User:stranger"
    assert refused[0]["listener"] == "logins"
    (changed,) = [line for line in told("changed") if "logged" in line["operation"]]
    assert changed["operation"] == "created: allow WRITE on topic logged to User:writer from *"
    assert any(
        line["resources"] == ["any topic"] or line["api"] == "CREATE_TOPICS" for line in told("allowed")
    )


def stranger(guarded: Guarded, folder: Path) -> Connection:
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    security = ClientSecurity(protocol="SASL_PLAINTEXT", user="stranger", password_file=str(password))
    host, _, port = guarded.logins.rpartition(":")
    return Connection(host, int(port), client_id="test", timeout_s=20, security=security)


def log_of(guarded: Guarded, folder: Path, version: int, body: bytes) -> str:
    """Return the broker's log lines for a stranger's forbidden write that waits for no answer."""
    before = len(guarded.broker.process.output)
    behind = produce_body("behind", 0, b"", acks=0)
    for number, sent in ((version, body), (7, behind)):
        with stranger(guarded, folder) as connection, pytest.raises(ConnectionFailed):
            connection.request(ApiKey.PRODUCE, number, sent, timeout_s=20)
    wait_until("what is behind it", lambda: "topic behind: ask" in guarded.broker.process.output[before:])
    return guarded.broker.process.output[before:]


def test_a_name_that_a_client_makes_up_begins_no_line_of_the_log(guarded: Guarded, tmp_path: Path) -> None:
    body = produce_body("t\nforged: changed: rights\x1b[2J", 0, build_batch([Message(1, None, b"x")]), acks=0)
    log = log_of(guarded, tmp_path, 7, body)
    assert r"topic t\nforged: changed: rights\x1b[2J: ask an operator" in log
    assert not [line for line in log.splitlines() if line.startswith("forged")]


def test_a_name_of_megabytes_is_not_written_into_the_log(guarded: Guarded, tmp_path: Path) -> None:
    partition = {"index": 0, "records": build_batch([Message(1, None, b"x")])}
    data = [{"name": "n" * 5_000_000, "partition_data": [partition]}]
    body = request_body(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": data})
    assert len(log_of(guarded, tmp_path, 9, body)) < 10_000


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.DESCRIBE_PRODUCERS])
def test_a_long_name_with_many_partitions_takes_little_memory(
    guarded: Guarded, tmp_path: Path, api: ApiKey
) -> None:
    name, numbers = "n" * 900_000, range(400)
    produced = [{"name": name, "partition_data": [{"index": number, "records": b""} for number in numbers]}]
    if api is ApiKey.PRODUCE:
        version, body = 9, request_body(api, 9, {"acks": 1, "topic_data": produced})
    else:
        topics = [{"name": name, "partition_indexes": list(numbers)}]
        version, body = 0, request_body(api, 0, {"topics": topics})
    status = Path(f"/proc/{guarded.broker.process.pid}/status")

    def most_kib() -> int:
        return int(status.read_text().partition("VmHWM:")[2].split()[0])

    before = most_kib()
    with stranger(guarded, tmp_path) as connection, suppress(ConnectionFailed):
        connection.request(api, version, body, timeout_s=60)
    assert most_kib() - before < 100_000


def test_rules_that_cannot_be_read_change_nothing_and_let_no_broker_start(
    guarded: Guarded, zookeeper: str, start: Callable[..., Process], tmp_path: Path
) -> None:
    topic = guarded.topic("kept")
    guarded.acls("allow", "User:writer", "write", "--topic", topic)
    session = Session.connect(zookeeper)
    path = "/rights/security/acls"
    data, _ = session.get(path) or (b"", None)
    try:
        session.call(session.client.set_async, path, b'{"version": 1, "rules": [[2, 3, "t"]]}')
        wait_until(
            "it is said",
            lambda: "the access control lists stay as they were" in guarded.broker.process.output,
        )
        assert outcome(guarded, "writer", topic) == 0
        second = tmp_path / "second.toml"
        lines = {"broker_id": 2, "cluster": "rights", "listen": "127.0.0.1:0", "zookeeper": zookeeper}
        lines |= {"log_dir": str(tmp_path / "logs"), "security.authorizer": True}
        second.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
        process = start("broker", str(second))
        assert process.wait() != 0
        assert "cannot read the access control lists in ZooKeeper" in process.output
    finally:
        session.call(session.client.set_async, path, data)
        session.close()


def test_two_who_change_rules_at_once_both_do_and_too_many_are_refused(zookeeper: str) -> None:
    session = Session.connect(zookeeper)
    one, two = AclStore(session, "crowd"), AclStore(session, "crowd")

    def rule(name: str) -> Rule:
        return Rule(Types.TOPIC, Pattern.LITERAL, name, "User:a", "*", Operation.READ, True)

    def late(there: Any) -> Any:
        if len(there) == 0:
            two.change(lambda rules: [*rules, rule("two")])
        return [*there, rule("one")]

    one.change(late)
    assert {kept.name for kept in one.acls.rules} == {"one", "two"}
    assert {kept.name for kept in two.acls.rules} == {"two"}
    with pytest.raises(MillraceError, match="rules are too many"):
        one.change(lambda _: [rule(f"{number:05}" + "x" * 400) for number in range(3_000)])
    assert len(AclStore(session, "crowd").acls.rules) == 2
    session.call(session.client.delete_async, "/crowd/security/acls")
    with pytest.raises(MillraceError, match="has lost"):
        one.change(lambda rules: rules)
    session.close()


def test_a_broker_without_an_authorizer_says_that_it_has_none(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "open")
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = _admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException, match="set `authorizer = true`") as refused:
        admin.create_acls([rule])[rule].result(30)
    assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED


def test_an_agent_that_may_not_read_the_audit_keeps_its_events_until_it_has_the_right_that_it_names(
    guarded: Guarded, start: Callable[..., Process], tmp_path: Path
) -> None:
    topic = guarded.topic("handed-in")
    with guarded.broker.client() as client:
        with suppress(TopicAlreadyExists):  # by another test
            client.create_topic("audit", 1)
        before = [client.list_offsets(name, LATEST)[0] for name in (topic, "audit")]
    for name in (topic, "audit"):
        guarded.acls("allow", "User:writer", "write", "--topic", name)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db")
    url = f"http://{registry.ready()}"
    guarded.millrace("schemas", "apply", "schemas", "--registry", url)
    password = tmp_path / "writer.password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    login = {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-256", "user": "writer", "ca": ""}
    client_toml = client_file(tmp_path / "writer.toml", password_file=str(password), **login)
    agent = start(
        *("agent", "--cluster", "rights", "--bootstrap", guarded.logins, "--registry", url),
        *("--service", "shop", "--spool", str(tmp_path / "spool"), "--listen", "127.0.0.1:0"),
        *("--subject", f"{topic}=PageView"),
        env={"MILLRACE_CLIENT": str(client_toml)},
    )
    at = f"http://{agent.ready()}"
    event = {"time": START, "event": EVENT}
    assert httpx.post(f"{at}/v1/topics/{topic}/events", json=event, timeout=WAIT_S).status_code == 200
    command = f"acls allow User:NAME read --topic audit --bootstrap {guarded.logins}"

    def problems() -> list[str]:
        return [str(problem) for problem in httpx.get(f"{at}/healthz").json()["problems"]]

    def has(metric: str) -> bool:
        return f"millrace_agent_{metric}\n" in httpx.get(f"{at}/metrics").text

    wait_until("it names the right", lambda: any(f"`millrace {command}`" in each for each in problems()))
    assert httpx.get(f"{at}/healthz").status_code == 503
    assert has("troubles 1.0")
    assert has("spool_events 1.0")
    with guarded.broker.client() as client:
        assert [client.list_offsets(name, LATEST)[0] for name in (topic, "audit")] == before, (
            "nothing is sent"
        )
    guarded.acls("allow", "User:writer", "read", "--topic", "audit")
    wait_until("it is sent", lambda: has("spool_events 0.0"))
    wait_until("no problem is left", lambda: not problems())
    assert agent.output.count("it may not read topic audit") == 1, "one line, whatever the number of tries"
