"""Clients in Go, JavaScript, C and old Python, with every version that they can be made to speak.

Which versions a broker was asked is read from its own metrics: a client that falls back to another version
than it was told does not pass.
"""

from __future__ import annotations

import secrets
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace_broker.handlers import all_apis
from tests.brokers import free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import BEGINNING, CODECS, CONFLUENT, assert_reads_exactly
from tests.compat.groups import Members, feed
from tests.compat.programs import PROGRAMS, Program, told
from tests.support import Process, wait_until

PARTITIONS, COUNT, SENT = 3, 30, 400
NOT_IDEMPOTENT = {"kafka-python 2.0", "sarama"}
"""Sends a batch again when its answer is lost, and the broker cannot know; sarama only in this scenario,
where its idempotent producer may end: see its `main.go`."""
SETTINGS = ["-1", "600000000", str(7 * 24 * 3600 * 1000)]
"""Values that `retention.ms` gets: when created, when altered, and when taken away again."""
NOT_ASKED = {"0.11.0.0": {"configs", "partitions"}, "1.0.0": {"configs"}}
"""Requests left out when sarama takes the broker for such a Kafka: it would ask for DescribeConfigs v0, which
Kafka 4 has no more, either, and CreatePartitions is younger."""
ASKED = {
    "sarama": {
        "produce": "3 5 6 7",
        "fetch": "5 6 7 8 10 11",
        "list_offsets": "2 3 4 5",
        "metadata": "4 5 6 7 9 10",
        "offset_commit": "3 4 6 7",
        "offset_fetch": "3 4 5 6 7",
        "join_group": "2 3 4 5 6",
    }
}
"""Requests that a program must have made its client send; franz-go must send everything."""
NO_AUTHORIZER, NO_LOGIN, NO_SUCH_BROKER = [54], [34], [102]
REFUSED = {
    **dict.fromkeys(("DescribeACLs", "CreateACLs", "DeleteACLs"), NO_AUTHORIZER),
    **dict.fromkeys(("AlterClientQuotas", "AlterUserSCRAMCredentials"), NO_AUTHORIZER),
    "UnregisterBroker": NO_SUCH_BROKER,
    "ElectLeaders": [84],  # not needed: the preferred one leads
    "AlterPartitionAssignments": [85],  # none is under way that could be cancelled
    **dict.fromkeys(("SASLHandshake", "SASLAuthenticate"), NO_LOGIN),
    "Metadata after": [3],
}
"""Requests that a broker without logins answers with an error, and the topic that has just been deleted."""


class Broker:
    """One broker for one program, and what it was asked."""

    def __init__(self, running: RunningBroker, metrics: str) -> None:
        self.running, self._metrics = running, metrics
        self.bootstrap = running.bootstrap

    def asked(self) -> dict[str, set[str]]:
        """API -> the versions of the requests that came, by the broker's own count."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: dict[str, set[str]] = defaultdict(set)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "millrace_broker_requests_total" and sample.value:
                    found[sample.labels["api"]].add(sample.labels["version"])
        return dict(found)


@pytest.fixture
def start_one(start: Callable[..., Process], zookeeper: str, tmp_path: Any) -> Callable[[str], Broker]:
    def started(name: str) -> Broker:
        metrics = f"127.0.0.1:{free_port()}"
        settings: dict[str, Any] = {
            "metrics_listen": metrics,
            "group_initial_rebalance_delay_ms": 0,
            "group_min_session_timeout_ms": 500,
        }
        # A cluster of its own: topics of another test, whose disk is gone, would have no leader.
        cluster = f"compat-{name}-{secrets.token_hex(3)}"
        return Broker(start_broker(start, zookeeper, tmp_path, cluster, **settings), metrics)

    return started


@pytest.fixture(params=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    """Built when it is first needed; skips where that is not possible."""
    return PROGRAMS[request.param]()


@pytest.fixture
def broker(start_one: Callable[[str], Broker], program: Program) -> Broker:
    return start_one(program.name)


def check_read(rows: Iterable[Sequence[Any]], producers: Iterable[str]) -> None:
    """All values of all producers, each once; a producer's in order, and the offsets of a partition rise."""
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    last: dict[int, int] = defaultdict(lambda: -1)
    for partition, offset, value in rows:
        assert offset > last[partition]
        last[partition] = offset
        producer, _, number = value.partition("-")
        seen[producer, partition].append(int(number))
    assert seen == {
        (name, p): list(range(p, COUNT, PARTITIONS)) for name in producers for p in range(PARTITIONS)
    }


def check_facts(facts: dict[str, Any], *, deletes_records: bool) -> None:
    """Check a program's findings with one set of versions against the truth."""
    read, (first, second), producers = facts["read"], facts["halves"], facts["producers"]
    assert {"none", "gzip", "snappy", "lz4"} <= set(producers), "zstd is younger than some versions"
    check_read(read, producers)
    assert len(first) == len(second) == len(read) // 2
    assert {tuple(row) for row in [*first, *second]} == {tuple(row) for row in read}, (
        "none twice, none missing"
    )
    assert facts["state"].lower() == "stable"
    offsets = {value: (str(partition), offset) for partition, offset, value in read}
    middle = [offsets[f"{name}-{COUNT // 2 + p}"] for name in producers for p in range(PARTITIONS)]
    assert facts["at_time"] == {
        p: min(offset for q, offset in middle if q == p) for p in map(str, range(PARTITIONS))
    }
    assert facts["lag"] == 0
    missing = NOT_ASKED.get(str(facts.get("kafka")), set())
    assert facts.keys() & {"configs", "partitions"} == {"configs", "partitions"} - missing
    assert facts.get("configs", SETTINGS) == SETTINGS
    assert facts.get("partitions", PARTITIONS + 1) == PARTITIONS + 1
    first_kept = facts["at_time"]["0"] if deletes_records else 0
    assert facts["starts"] == {"0": first_kept, "1": 0, "2": 0}, "records before are deleted"
    assert "MESSAGE_TOO_LARGE" in facts["too_large"]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in facts["no_topic"]
    assert facts["deleted"]


def test_every_version_that_can_be_forced_does_all_that_a_client_does(
    program: Program, broker: Broker, start: Callable[..., Process]
) -> None:
    job: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": "t",
        "partitions": PARTITIONS,
        "count": COUNT,
    }
    rounds = program.run(start, do="versions", producers=CODECS, **job)
    for facts in rounds:
        check_facts(facts, deletes_records=program.name != "kafka-python 2.0")
    if program.name == "franz-go":
        for facts in rounds:
            assert {name: codes for name, codes in facts["codes"].items() if codes} == REFUSED
        offered = {
            api.key.name.lower(): {str(version) for version in api.versions}
            for api in all_apis()
            if api.versions
        }
        offered["produce"] -= {"0", "1", "2"}  # offered for old clients' sake, and refused
        assert broker.asked() == offered
    asked = broker.asked()
    for api, versions in ASKED.get(program.name, {}).items():
        assert asked[api] == set(versions.split()), api


def test_two_members_share_a_topic_and_one_goes_on_when_the_other_is_killed(
    program: Program, broker: Broker, start: Callable[..., Process]
) -> None:
    topic = broker.running.create_topic("shared", PARTITIONS, flush_ms=20)
    members = Members(start, broker.bootstrap, topic, "pair")
    with feed(members.bootstrap, topic, PARTITIONS) as sent:
        first, second = (members.add(program, session_ms=3000, pause=20) for _ in range(2))
        members.balanced(PARTITIONS)
        wait_until("both have committed", lambda: first.events("committed") and second.events("committed"))
        first.kill()
        members.balanced(PARTITIONS)
    members.received(sent)
    members.check_deliveries()
    second.close()


def test_a_broker_killed_while_a_producer_sends_loses_nothing_and_repeats_what_the_client_repeats(
    program: Program, broker: Broker, start: Callable[..., Process]
) -> None:
    topic = broker.running.create_topic("killed", PARTITIONS)
    job: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "partitions": PARTITIONS,
        "first": 0,
        "count": SENT,
    }
    process = program.start(start, do="produce", producers=["none"], pause=5, **job)
    wait_until("a hundred are acknowledged", lambda: len(told(process)) >= 100)
    broker.running.process.kill()
    broker.running.restart()
    assert process.wait() == 0, process.output
    assert sorted(number for _, number in told(process)) == list(range(SENT))
    for p in range(PARTITIONS):
        values = [b"none-%d" % number for number in range(p, SENT, PARTITIONS)]
        if program.name in NOT_IDEMPOTENT:
            read = [value for _, value in CONFLUENT.read(broker.bootstrap, topic, p, BEGINNING)]
            assert list(dict.fromkeys(read)) == values
        else:
            assert_reads_exactly(CONFLUENT, broker.bootstrap, topic, p, values)


def test_a_client_that_never_asks_for_versions_is_served(
    start_one: Callable[[str], Broker], start: Callable[..., Process]
) -> None:
    program, broker = PROGRAMS["franz-go"](), start_one("blind")
    topic = broker.running.create_topic("blind", PARTITIONS)
    job: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "partitions": PARTITIONS,
        "first": 0,
        "count": 9,
    }
    program.run(start, do="produce", producers=["gzip"], blind=True, **job)
    assert broker.asked()["produce"] == {"3"}
    assert "api_versions" not in broker.asked()
    for p in range(PARTITIONS):
        values = [b"gzip-%d" % number for number in range(p, 9, PARTITIONS)]
        assert_reads_exactly(CONFLUENT, broker.bootstrap, topic, p, values)
