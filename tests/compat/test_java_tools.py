"""Each command-line tool of Apache Kafka 4.1 does with a broker what docs/protocol.md says, row by row."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.peers.kafka import KafkaBroker, kafka_tool, kafka_tool_command
from tests.support import REPOSITORY, Process, wait_until

PAGE = (REPOSITORY / "docs" / "protocol.md").read_text()
TOPIC = "tools"
TRACE = "\tat "
SERVER = ("--bootstrap-server", "{broker}")


@dataclass(frozen=True)
class Run:
    """One command line: the tool's class, and arguments in which {broker}, {folder} and {secured} stand."""

    name: str
    arguments: Sequence[str]
    stdin: str = ""


def run(name: str, *arguments: str, stdin: str = "") -> Run:
    return Run(name, (*SERVER, *arguments), stdin)


def configs(*arguments: str) -> Run:
    return run("ConfigCommand", *arguments)


def acls(*arguments: str) -> Run:
    return Run("AclCommand", ("--bootstrap-server", "{secured}", *arguments))


def groups(*arguments: str) -> Run:
    return run("ConsumerGroupCommand", *arguments)


def verb(name: str, *arguments: str) -> Run:
    """Return the run of a tool whose first argument names the action."""
    return Run(name, (*arguments[:1], *SERVER, *arguments[1:]))


_ADMIN = ("--command-config", "{folder}/admin.properties")
_ONE_GROUP = ("--group", "administered", "--topic", TOPIC)
_REASSIGN = ("--reassignment-json-file", "{folder}/reassign.json")

RUNS: Mapping[tuple[str, str], Sequence[Run]] = {
    ("kafka-topics", "`--create`, `--list`, `--describe`, `--alter`, `--delete`"): [
        run(
            "TopicCommand", "--create", "--topic", "made", "--partitions", "1", "--config", "segment.ms=5000"
        ),
        run("TopicCommand", "--list"),
        run("TopicCommand", "--describe", "--topic", "made"),
        run("TopicCommand", "--alter", "--topic", "made", "--partitions", "2"),
        run("TopicCommand", "--delete", "--topic", "made"),
    ],
    ("kafka-topics", "`--create --config cleanup.policy=compact`"): [
        run("TopicCommand", "--create", "--topic", "compacted", "--config", "cleanup.policy=compact")
    ],
    (
        "kafka-configs",
        "`--describe` of topics, brokers, broker loggers, users, clients, addresses, groups, client metrics",
    ): [
        configs("--describe", "--all", "--topic", TOPIC),
        configs("--describe", "--all", "--broker", "1"),
        configs("--describe", "--entity-type", "brokers", "--entity-default"),
        configs("--describe", "--entity-type", "broker-loggers", "--entity-name", "1"),
        configs("--describe", "--entity-type", "users"),
        configs("--describe", "--entity-type", "clients"),
        configs("--describe", "--entity-type", "ips"),
        configs("--describe", "--entity-type", "groups", "--entity-name", "g"),
        configs("--describe", "--entity-type", "client-metrics"),
    ],
    ("kafka-configs", "`--alter` of a topic"): [
        configs("--alter", "--topic", TOPIC, "--add-config", "retention.ms=5000000,file.delete.delay.ms=1"),
        configs("--alter", "--topic", TOPIC, "--delete-config", "retention.ms,file.delete.delay.ms"),
    ],
    ("kafka-configs", "`--alter` of a topic to `cleanup.policy=compact`"): [
        configs("--alter", "--topic", TOPIC, "--add-config", "cleanup.policy=compact")
    ],
    ("kafka-configs", "`--alter` of a broker"): [
        configs("--alter", "--broker", "1", "--add-config", "log.retention.ms=1")
    ],
    ("kafka-configs", "`--alter` of a broker's loggers"): [
        configs("--alter", "--entity-type", "broker-loggers", "--entity-name", "1", "--add-config", "a=DEBUG")
    ],
    ("kafka-configs", "`--alter` of a group"): [
        configs(
            *("--alter", "--entity-type", "groups", "--entity-name", "g"),
            *("--add-config", "consumer.session.timeout.ms=50000"),
        )
    ],
    ("kafka-configs", "`--alter` of quotas, without an authorizer"): [
        configs(
            *("--alter", "--entity-type", "users", "--entity-name", "u"),
            *("--add-config", "producer_byte_rate=10"),
        )
    ],
    ("kafka-acls", "`--list`, `--add`, `--remove`, with an authorizer"): [
        acls("--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", TOPIC),
        acls("--list"),
        acls("--remove", "--force", "--allow-principal", "User:a", "--operation", "Read", "--topic", TOPIC),
    ],
    ("kafka-acls", "`--list`, without an authorizer"): [run("AclCommand", "--list")],
    ("kafka-console-producer", ""): [run("ConsoleProducer", "--topic", TOPIC, stdin="a\nb\n")],
    ("kafka-console-consumer", ""): [
        run(
            "ConsoleConsumer",
            *("--topic", TOPIC, "--from-beginning", "--max-messages", "3", "--group", "console"),
        )
    ],
    ("kafka-producer-perf-test", ""): [
        Run(
            "ProducerPerformance",
            (
                *("--topic", TOPIC, "--num-records", "20", "--record-size", "10", "--throughput", "-1"),
                *("--producer-props", "bootstrap.servers={broker}"),
            ),
        )
    ],
    ("kafka-producer-perf-test", "`--transactional-id`"): [
        Run(
            "ProducerPerformance",
            (
                *("--topic", TOPIC, "--num-records", "1", "--record-size", "1", "--throughput", "-1"),
                *("--transactional-id", "t", "--producer-props", "bootstrap.servers={broker}"),
            ),
        )
    ],
    ("kafka-consumer-perf-test", ""): [run("ConsumerPerformance", "--topic", TOPIC, "--messages", "3")],
    ("kafka-e2e-latency", ""): [Run("EndToEndLatency", ("{broker}", "latency", "5", "all", "10"))],
    ("kafka-verifiable-producer", ""): [run("VerifiableProducer", "--topic", TOPIC, "--max-messages", "3")],
    ("kafka-verifiable-consumer", ""): [
        run(
            "VerifiableConsumer",
            *("--topic", TOPIC, "--group-id", "verifiable", "--max-messages", "3"),
            *("--reset-policy", "earliest"),
        )
    ],
    ("kafka-consumer-groups", "`--list`, `--describe`, `--reset-offsets`, `--delete-offsets`, `--delete`"): [
        groups("--reset-offsets", *_ONE_GROUP, "--to-earliest", "--execute"),
        groups("--list", "--state"),
        groups("--describe", "--group", "administered"),
        groups("--delete-offsets", *_ONE_GROUP),
        groups("--reset-offsets", *_ONE_GROUP, "--to-latest", "--execute"),
        groups("--delete", "--group", "administered"),
    ],
    ("kafka-consumer-groups", "`--describe` of a group that does not exist"): [
        groups("--describe", "--group", "none")
    ],
    ("kafka-groups", "`--list`"): [run("GroupsCommand", "--list")],
    ("kafka-get-offsets", ""): [
        run("GetOffsetShell", "--topic", TOPIC, "--time", time) for time in ("-1", "-2", "-3", "-4", "-5")
    ],
    ("kafka-delete-records", ""): [run("DeleteRecordsCommand", "--offset-json-file", "{folder}/delete.json")],
    ("kafka-log-dirs", "`--describe`"): [run("LogDirsCommand", "--describe")],
    ("kafka-broker-api-versions", ""): [run("BrokerApiVersionsCommand")],
    ("kafka-cluster", "`cluster-id`, `list-endpoints`"): [
        verb("ClusterTool", "cluster-id"),
        verb("ClusterTool", "list-endpoints"),
    ],
    ("kafka-cluster", "`unregister`"): [verb("ClusterTool", "unregister", "--id", "7")],
    ("kafka-features", "`describe`"): [run("FeatureCommand", "describe")],
    ("kafka-features", "`upgrade`, `downgrade`, `disable`"): [
        run("FeatureCommand", "upgrade", "--feature", "metadata.version=20"),
        run("FeatureCommand", "downgrade", "--feature", "group.version=0"),
        run("FeatureCommand", "disable", "--feature", "group.version"),
    ],
    ("kafka-transactions", "`list`, `describe-producers`, `find-hanging`"): [
        run("TransactionsCommand", "list"),
        run("TransactionsCommand", "describe-producers", "--topic", TOPIC, "--partition", "0"),
        run("TransactionsCommand", "find-hanging", "--broker-id", "1"),
    ],
    ("kafka-transactions", "`describe`"): [run("TransactionsCommand", "describe", "--transactional-id", "t")],
    ("kafka-transactions", "`abort`"): [
        run("TransactionsCommand", "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")
    ],
    ("kafka-client-metrics", "`--list`, `--describe`"): [
        run("ClientMetricsCommand", "--list"),
        run("ClientMetricsCommand", "--describe"),
    ],
    ("kafka-client-metrics", "`--alter`, `--delete`"): [
        run("ClientMetricsCommand", "--alter", "--name", "m", "--metrics", "org.", "--interval", "1000"),
        run("ClientMetricsCommand", "--delete", "--name", "m"),
    ],
    ("kafka-streams-application-reset", ""): [
        run("StreamsResetter", "--application-id", "app", "--input-topics", TOPIC)
    ],
    ("kafka-streams-groups", "`--list`"): [run("StreamsGroupCommand", "--list")],
    ("kafka-share-groups", "`--list`"): [run("ShareGroupCommand", "--list")],
    ("kafka-share-groups", "`--describe`"): [run("ShareGroupCommand", "--describe", "--group", "s")],
    ("kafka-console-share-consumer", ""): [
        run("ConsoleShareConsumer", "--topic", TOPIC, "--timeout-ms", "1000")
    ],
    ("kafka-share-consumer-perf-test", ""): [
        run("ShareConsumerPerformance", "--topic", TOPIC, "--messages", "3", "--timeout", "60000")
    ],
    ("kafka-verifiable-share-consumer", ""): [
        run("VerifiableShareConsumer", "--topic", TOPIC, "--group-id", "s", "--max-messages", "1")
    ],
    ("kafka-delegation-tokens", "`--create`, `--renew`, `--expire`, `--describe`"): [
        run("DelegationTokenCommand", "--create", "--max-life-time-period", "-1", *_ADMIN),
        run("DelegationTokenCommand", "--renew", "--hmac", "aGk=", "--renew-time-period", "-1", *_ADMIN),
        run("DelegationTokenCommand", "--expire", "--hmac", "aGk=", "--expiry-time-period", "-1", *_ADMIN),
        run("DelegationTokenCommand", "--describe", *_ADMIN),
    ],
    ("kafka-metadata-quorum", "`describe`, `remove-controller`"): [
        run("MetadataQuorumCommand", "describe", "--status"),
        run("MetadataQuorumCommand", "describe", "--replication"),
        run(
            "MetadataQuorumCommand",
            *("remove-controller", "--controller-id", "1"),
            *("--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ"),
        ),
    ],
    ("kafka-leader-election", "`--election-type preferred`"): [
        run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    ],
    ("kafka-reassign-partitions", "`--list`, `--execute`, `--verify`, `--cancel`"): [
        run("ReassignPartitionsCommand", "--list"),
        run("ReassignPartitionsCommand", "--execute", *_REASSIGN),
        run("ReassignPartitionsCommand", "--verify", *_REASSIGN),
        run("ReassignPartitionsCommand", "--cancel", *_REASSIGN),
    ],
    ("kafka-reassign-partitions", "`--execute --throttle`"): [
        run("ReassignPartitionsCommand", "--execute", "--throttle", "1000000", *_REASSIGN)
    ],
    ("kafka-reassign-partitions", "`--generate`"): [
        run(
            "ReassignPartitionsCommand",
            *("--generate", "--broker-list", "1", "--topics-to-move-json-file", "{folder}/move.json"),
        )
    ],
    ("kafka-replica-verification", ""): [
        Run("ReplicaVerificationTool", ("--broker-list", "{broker}", "--report-interval-ms", "500"))
    ],
    ("kafka-dump-log", "a segment of Millrace's"): [
        Run("DumpLogSegments", ("--print-data-log", "--files", "{segment}"))
    ],
}
OF_KAFKA: Mapping[tuple[str, str], Run] = {
    ("kafka-configs", "`--alter` of a topic to `retention.ms=soon`"): configs(
        "--alter", "--topic", TOPIC, "--add-config", "retention.ms=soon"
    ),
    ("kafka-acls", "`--list`, without an authorizer"): run("AclCommand", "--list"),
    ("kafka-consumer-groups", "`--describe` of a group that does not exist"): groups(
        "--describe", "--group", "none"
    ),
    ("kafka-share-groups", "`--describe`, where share groups are off"): run(
        "ShareGroupCommand", "--describe", "--group", "s"
    ),
    ("kafka-cluster", "`unregister`"): verb("ClusterTool", "unregister", "--id", "7"),
    ("kafka-delegation-tokens", "`--describe`"): run("DelegationTokenCommand", "--describe", *_ADMIN),
    ("kafka-reassign-partitions", "`--execute`, to a broker that does not exist"): run(
        "ReassignPartitionsCommand", "--execute", "--reassignment-json-file", "{folder}/away.json"
    ),
    ("kafka-metadata-quorum", "`remove-controller`"): RUNS[
        "kafka-metadata-quorum", "`describe`, `remove-controller`"
    ][-1],
}
"""Requests that Apache Kafka's own broker refuses: these tools print a trace for every error."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the page's table below the line that begins with `heading`."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


TOLD = {
    (tool.strip("`"), what): (outcome, says.strip("`")) for tool, what, outcome, says in rows("| tool | what")
}
TOLD_OF_KAFKA = {(tool.strip("`"), what): says.strip("`") for tool, what, says in rows("| tool with Apache")}


def test_the_page_has_a_row_for_every_run_and_no_other() -> None:
    assert list(TOLD) == list(RUNS)
    assert list(TOLD_OF_KAFKA) == list(OF_KAFKA)
    traced = {tool for (tool, _), (outcome, _) in TOLD.items() if "trace" in outcome}
    alone = {"kafka-console-share-consumer"}
    assert traced - {tool for tool, _ in OF_KAFKA} == alone, "each of the others is shown with Kafka, too"


@dataclass(frozen=True)
class Place:
    """Objects that the runs' arguments name."""

    broker: str
    secured: str
    folder: Path
    segment: str = ""

    def arguments(self, run: Run) -> list[str]:
        names = {
            "broker": self.broker,
            "secured": self.secured,
            "folder": self.folder,
            "segment": self.segment,
        }
        return [argument.format(**names) if "{" in argument else argument for argument in run.arguments]


def _files(folder: Path, broker: str) -> None:
    partition = {"topic": TOPIC, "partition": 0}
    contents = {
        "reassign": {"version": 1, "partitions": [{**partition, "replicas": [1]}]},
        "away": {"version": 1, "partitions": [{**partition, "replicas": [7]}]},
        "move": {"version": 1, "topics": [{"topic": TOPIC}]},
        "delete": {"version": 1, "partitions": [{**partition, "offset": 0}]},
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "admin.properties").write_text(f"bootstrap.servers={broker}\n")


@pytest.fixture(scope="module")
def place(
    needs_maven: None,
    start_for_module: Callable[..., Process],
    zookeeper: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Place:
    folder = tmp_path_factory.mktemp("tools")
    made: RunningBroker = start_broker(start_for_module, zookeeper, folder, "compat-tools")
    secured = start_broker(start_for_module, zookeeper, folder, "compat-tools-secured")
    secured.process.stop()
    with open(secured.config, "a") as file:
        file.write('[security]\nauthorizer = true\nsuper_users = ["User:ANONYMOUS"]\n')
    secured.restart()
    _files(folder, made.bootstrap)
    made.create_topic("latency")
    made.create_topic(TOPIC)
    done = kafka_tool(
        *("ConsoleProducer", "--bootstrap-server", made.bootstrap, "--topic", TOPIC), stdin=b"a\nb\nc\n"
    )
    assert done.returncode == 0, done.stderr.decode()
    (segment,) = folder.glob(f"compat-tools-1/{TOPIC}-0-*/*.log")
    return Place(made.bootstrap, secured.bootstrap, folder, str(segment))


@pytest.mark.parametrize("row", RUNS, ids=lambda row: f"{row[0]} {row[1]}".strip())
def test_a_tool_does_what_the_page_says(place: Place, row: tuple[str, str]) -> None:
    outcome, says = TOLD[row]
    for one in RUNS[row]:
        if outcome.startswith("does not end"):
            _is_stopped_when_it_has_said(one, place, says, trace=outcome.endswith("trace"))
            continue
        done = kafka_tool(one.name, *place.arguments(one), stdin=one.stdin.encode())
        said = (done.stdout + done.stderr).decode()
        expected = (outcome.startswith("refused"), outcome.endswith("trace"), True)
        assert (done.returncode != 0, TRACE in said, says in said) == expected, f"{one.arguments}: {said}"
        assert outcome != "works" or not re.search(r"\bERROR\b|Exception", said), f"{one.arguments}: {said}"


def _is_stopped_when_it_has_said(one: Run, place: Place, says: str, *, trace: bool) -> None:
    printed = place.folder / one.name
    with open(printed, "wb") as out:
        process = subprocess.Popen(
            kafka_tool_command(one.name, *place.arguments(one)), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(f"it says {says}", lambda: says in printed.read_text())
        if trace:
            wait_until("it prints a trace", lambda: TRACE in printed.read_text())
        assert process.poll() is None
        assert trace or TRACE not in printed.read_text()
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.parametrize("row", OF_KAFKA, ids=lambda row: f"{row[0]} {row[1]}".strip())
def test_a_tool_prints_a_trace_for_what_apache_kafka_refuses_too(
    kafka: KafkaBroker, tmp_path: Path, row: tuple[str, str]
) -> None:
    _files(tmp_path, kafka.address)
    if row[0] == "kafka-configs":
        arguments = ("--create", "--if-not-exists", "--topic", TOPIC)
        assert kafka_tool("TopicCommand", "--bootstrap-server", kafka.address, *arguments).returncode == 0
    one = OF_KAFKA[row]
    done = kafka_tool(one.name, *Place(kafka.address, "", tmp_path).arguments(one))
    said = (done.stdout + done.stderr).decode()
    assert TRACE in said, said
    assert TOLD_OF_KAFKA[row] in said, said
