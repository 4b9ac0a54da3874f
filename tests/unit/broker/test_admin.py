"""Topics created, described and changed through the protocol, as a client's own library asks for it."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.config import BrokerConfig, ListenerConfig, LogConfig, OriginConfig
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from millrace.zookeeper.topic_state import REPLICATING, PartitionState, TopicState
from millrace_broker.partitions.topic_settings import BROKER_SETTINGS, FIXED, SETTINGS
from millrace_broker.storage.log_directory import LogDirectory
from tests.support import WAIT_S
from tests.unit.broker.asking import (
    AskingClient,
    ChangingCluster,
    ask,
    error_codes,
    handlers_of,
    request_body,
)
from tests.unit.broker.running import ORIGIN, Outcome, Running, topic

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, FROM_FILE, DEFAULT = 1, 4, 5


class Setup(Running):
    """A broker with a topic of three partitions, and one that mirrors another cluster's."""

    def __init__(self, folder: Path) -> None:
        cluster = ChangingCluster(topic("t", 1, 1, 2), topic("copy", 1, origin=ORIGIN))
        super().__init__(folder, cluster, LogConfig(flush_ms=1, segment_bytes=1 << 20))

    def configure(self, **settings: Any) -> None:
        self.broker.config = BrokerConfig(broker_id=1, cluster="test", log=self.broker.config.log, **settings)

    def copying(self) -> None:
        """All brokers are of a release that copies partitions."""
        self.cluster.brokers = {
            number: dataclasses.replace(broker, directory=f"{number:016x}", protocol=REPLICATING)
            for number, broker in self.cluster.brokers.items()
        }

    def settings(self, name: str = "t", version: int = 3, **fields: Any) -> dict[str, Any]:
        resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None, **fields}
        asked = {"resources": [resource], "include_synonyms": True}
        asked |= {"include_documentation": True} if version >= 3 else {}
        (result,) = ask(self, ApiKey.DESCRIBE_CONFIGS, version, asked).results
        assert result.error_code == 0, result.error_message
        return {config.name: config for config in result.configs}

    def alter(
        self, *configs: tuple[str, int, str | None], validate_only: bool = False, **resource: Any
    ) -> Any:
        """The (code, message) of an incremental change."""
        named = [{"name": n, "config_operation": op, "value": value} for n, op, value in configs]
        entry = {"resource_type": TOPIC, "resource_name": "t", "configs": named, **resource}
        asked = {"resources": [entry], "validate_only": validate_only}
        (result,) = ask(self, ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, asked).responses
        return result.error_code, result.error_message

    def add_partitions(self, name: str, count: int, **asked: Any) -> ErrorCode:
        entry = {"name": name, "count": count, "assignments": asked.pop("assignments", None)}
        request = {"topics": [entry], "timeout": 10_000, **asked}
        (result,) = ask(self, ApiKey.CREATE_PARTITIONS, 1, request).results
        return ErrorCode(result.error_code)

    def create(self, *topics: dict[str, Any], **asked: Any) -> dict[str, ErrorCode]:
        named = [{"num_partitions": 1, "replication_factor": -1, **each} for each in topics]
        answer = ask(self, ApiKey.CREATE_TOPICS, 4, {"topics": named, "timeout": 10_000, **asked})
        return {each.name: ErrorCode(each.error_code) for each in answer.topics}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.stop()


# Settings


def test_a_topics_settings_say_where_they_come_from(running: Setup) -> None:
    assert running.alter(("retention.ms", SET, "60000")) == (0, None)
    found = running.settings()
    told = {name: (config.value, config.config_source, config.read_only) for name, config in found.items()}
    assert {name: what for name, what in told.items() if name in SETTINGS} == {
        "segment.bytes": (str(1 << 20), FROM_FILE, False),
        "segment.ms": (str(7 * 24 * 3600 * 1000), DEFAULT, False),
        "flush.messages": ("10000", DEFAULT, False),
        "flush.ms": ("1", FROM_FILE, False),
        "retention.ms": ("60000", FROM_TOPIC, False),
        "retention.bytes": ("-1", DEFAULT, False),
        "max.message.bytes": (str(8 << 20), DEFAULT, False),
    }
    assert {name: what for name, what in told.items() if name in FIXED} == {
        name: (only.value, DEFAULT, True) for name, only in FIXED.items()
    }
    assert told.keys() == SETTINGS.keys() | FIXED.keys() | {"min.insync.replicas", "compression.type"}
    assert told["min.insync.replicas"] == ("1", DEFAULT, False)
    places = [(place.name, place.value, place.source) for place in found["flush.ms"].synonyms]
    assert places == [("log.flush.interval.ms", "1", FROM_FILE), ("log.flush.interval.ms", "100", DEFAULT)]
    assert (found["flush.ms"].config_type, found["cleanup.policy"].config_type) == (5, 2)
    assert found["flush.ms"].documentation.startswith("Flush at the latest this long after an append")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_only_the_settings_asked_for_are_told(running: Setup, version: int) -> None:
    keys = ("flush.ms", "no.such.setting")
    assert list(running.settings(version=version, configuration_keys=keys)) == ["flush.ms"]


def test_a_value_too_long_to_be_repeated_in_the_answer_is_refused_like_any_other(running: Setup) -> None:
    code, message = running.alter(("retention.ms", SET, "x" * 32_760))
    assert code == ErrorCode.INVALID_CONFIG
    assert message.startswith("retention.ms='xxx")


def test_an_empty_list_of_settings_asks_for_all_of_them_as_with_kafka(running: Setup) -> None:
    assert running.settings(configuration_keys=()) == running.settings()


def test_a_mirrored_topic_tells_its_origins(running: Setup) -> None:
    found = running.settings("copy")["mirror.origins"]
    assert (found.value, found.read_only) == ("0=dc1/t-0", True)


def test_a_broker_tells_what_its_file_says_and_answers_for_itself_only(running: Setup) -> None:
    running.configure(auto_create_topics=True)
    found = running.settings("1", resource_type=BROKER)
    assert all(config.read_only for config in found.values())
    told = {name: (found[name].value, found[name].config_source, found[name].config_type) for name in found}
    assert told["auto_create_topics"] == ("true", FROM_FILE, 1)
    assert told["log.segment_bytes"] == (str(1 << 20), FROM_FILE, 5)
    assert told["log.retention_bytes"] == ("-1", DEFAULT, 5)
    assert told["cluster"] == ("test", FROM_FILE, 2)
    assert running.settings("", resource_type=BROKER) == {}, (
        "the settings of all brokers, which there are none of"
    )
    for kind, name in ((BROKER, "2"), (3, "1"), (0, "t")):
        asked = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
        assert list(error_codes(ask(running, ApiKey.DESCRIBE_CONFIGS, 1, asked))) == [
            ErrorCode.INVALID_REQUEST
        ]


def test_every_setting_of_a_broker_is_told_with_its_documentation(running: Setup) -> None:
    origin = OriginConfig(bootstrap="a:1")
    running.configure(listeners={"inside": ListenerConfig(listen="h:1")}, mirror={"dc1": origin})
    found = running.settings("1", resource_type=BROKER)
    assert [name for name, config in found.items() if not config.documentation] == []
    assert [name for name, config in found.items() if "None" in config.documentation] == []
    for name, text in {
        "max_idle_ms": "Close a connection that for this long",
        "connections.max.idle.ms": "Close a connection that for this long",
        "log.segment_bytes": "Roll to a new segment",
        "listeners.inside.listen": "HOST:PORT where clients of this listener",
        "mirror.dc1.security.ca": "PEM file of the authorities",
        "advertised.listeners": "HOST:PORT at which clients of this listener reach the broker",
        "log.cleanup.policy": "There is no other value",
        "compression.type": "Without effect",
    }.items():
        assert found[name].documentation.startswith(text), name


@pytest.mark.parametrize("kind", [BROKER_LOGGER, CLIENT_METRICS, GROUP])
def test_what_has_no_settings_is_described_with_none(running: Setup, kind: int) -> None:
    assert running.settings("any", resource_type=kind) == {}


def test_a_broker_tells_its_settings_by_kafkas_names_with_the_keys_of_its_file(running: Setup) -> None:
    running.configure(auto_create_topics=True)
    found = running.settings("1", resource_type=BROKER)
    for name, key in BROKER_SETTINGS.items():
        told, own = found[name], found[key]
        assert (told.value, told.config_source, told.config_type) == (
            own.value,
            own.config_source,
            own.config_type,
        )
        assert [place.name for place in told.synonyms] == [name, key]
    assert found["auto.create.topics.enable"].value == "true"
    assert found["num.partitions"].value == "4"
    assert found["default.replication.factor"].value == "1"
    assert found["log.cleanup.policy"].value == "delete"
    assert found["listeners"].value == "default://127.0.0.1:9092"
    assert found["listener.security.protocol.map"].value == "default:PLAINTEXT"


def test_a_setting_without_effect_is_kept_and_shown(running: Setup) -> None:
    assert running.alter(("file.delete.delay.ms", SET, "5")) == (0, None)
    told = running.settings()["file.delete.delay.ms"]
    assert (told.value, told.config_source, told.read_only) == ("5", FROM_TOPIC, False)
    assert told.documentation.startswith("Without effect")
    assert running.alter(("file.delete.delay.ms", DELETE, None)) == (0, None)
    assert "file.delete.delay.ms" not in running.settings()


def test_a_compression_for_the_broker_is_taken_and_said_to_have_no_effect(running: Setup) -> None:
    assert running.settings()["compression.type"].value == "producer"
    assert running.alter(("compression.type", SET, "zstd")) == (0, None)
    told = running.settings()["compression.type"]
    assert (told.value, told.config_source) == ("zstd", FROM_TOPIC)
    assert told.documentation.startswith("Without effect")
    code, reason = running.alter(("compression.type", SET, "brotli"))
    assert (code, "'brotli' is not producer or uncompressed" in reason) == (ErrorCode.INVALID_CONFIG, True)


def test_the_policy_that_holds_may_be_appended_to_its_list(running: Setup) -> None:
    assert running.alter(("cleanup.policy", APPEND, "delete")) == (0, None)
    assert running.alter(("cleanup.policy", SUBTRACT, "compact")) == (0, None)
    assert running.settings()["cleanup.policy"].value == "delete"


def test_changed_settings_reach_open_logs_and_deleted_ones_are_the_brokers_again(running: Setup) -> None:
    log = running.broker.partition("t", 1).log
    assert running.alter(("retention.ms", SET, "5"), ("max.message.bytes", SET, "100")) == (0, None)
    assert (log.config.retention_ms, log.config.max_message_bytes) == (5, 100)
    assert running.alter(("retention.ms", DELETE, None), ("flush.messages", DELETE, None)) == (0, None)
    assert (log.config.retention_ms, log.config.max_message_bytes) == (LogConfig().retention_ms, 100)
    assert running.cluster.topics["t"].settings == {"max.message.bytes": "100"}


def test_no_client_lifts_a_topics_largest_message_over_the_largest_request(running: Setup) -> None:
    code, reason = running.alter(("max.message.bytes", SET, "2147483647"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "at most 67108864, the broker's max_frame_bytes" in str(reason)


@pytest.mark.parametrize("version", [0, 1])
def test_altering_the_old_way_replaces_all_settings(running: Setup, version: int) -> None:
    running.alter(("retention.ms", SET, "5"))
    entry = {"resource_type": TOPIC, "resource_name": "t", "configs": [{"name": "flush.ms", "value": "9"}]}
    answer = ask(running, ApiKey.ALTER_CONFIGS, version, {"resources": [entry]})
    assert list(error_codes(answer)) == [ErrorCode.NONE]
    assert running.cluster.topics["t"].settings == {"flush.ms": "9"}


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "1_000")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SET, "compact")], ErrorCode.INVALID_CONFIG),
        ([("nonsense", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("nonsense", DELETE, None)], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "compact")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SUBTRACT, "delete")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", SET, "5"), ("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_change_that_cannot_be_changes_nothing_and_says_why(
    running: Setup, configs: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    before = running.cluster.topics["t"]
    found, reason = running.alter(*configs)
    assert found == code
    assert reason
    assert running.cluster.topics["t"] is before or running.cluster.topics["t"] == before


def test_a_change_can_be_tried_without_making_it(running: Setup) -> None:
    assert running.alter(("retention.ms", SET, "5"), validate_only=True) == (0, None)
    assert running.alter(("retention.ms", SET, "x"), validate_only=True)[0] == ErrorCode.INVALID_CONFIG
    refused, _ = running.alter(("retention.ms", SET, "5"), validate_only=True, resource_name="nope")
    assert refused == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert running.cluster.topics["t"].settings == {}


def test_a_brokers_settings_are_refused_with_the_way_to_change_them(running: Setup) -> None:
    code, reason = running.alter(("flush_ms", SET, "5"), resource_type=BROKER, resource_name="1")
    assert code == ErrorCode.INVALID_REQUEST
    assert "configuration file" in reason
    cleared = ("leader.replication.throttled.rate", DELETE, None)
    assert running.alter(cleared, resource_type=BROKER, resource_name="1") == (0, None)
    assert running.alter(resource_type=BROKER, resource_name="1")[0] == ErrorCode.INVALID_REQUEST
    both = (cleared, ("log.retention.ms", SET, "5"))
    assert running.alter(*both, resource_type=BROKER, resource_name="1")[0] == ErrorCode.INVALID_REQUEST


def test_a_topic_named_twice_in_one_change_is_refused_once(running: Setup) -> None:
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    entry = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
    other = {**entry, "resource_name": "copy"}
    asked = {"resources": [entry, other, entry]}
    answer = ask(running, ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, asked)
    codes = {each.resource_name: each.error_code for each in answer.responses}
    assert (codes, len(answer.responses)) == ({"t": ErrorCode.INVALID_REQUEST, "copy": ErrorCode.NONE}, 2)
    assert running.cluster.topics["t"].settings == {}


# Partitions


def test_new_partitions_are_open_here_on_the_answer_and_the_others_stay(running: Setup) -> None:
    before = running.cluster.topics["t"].partitions
    assert running.add_partitions("t", 6) is ErrorCode.NONE
    after = running.cluster.topics["t"].partitions
    assert {n: after[n] for n in before} == before
    assert sorted(state.leader for state in after.values()) == [1, 1, 1, 2, 2, 2]
    for number, state in after.items():
        if state.leader == 1:
            assert running.broker.partition("t", number)


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [
        ("t", 3, ErrorCode.INVALID_PARTITIONS),
        ("t", 2, ErrorCode.INVALID_PARTITIONS),
        ("t", -1, ErrorCode.INVALID_PARTITIONS),
        ("t", 1001, ErrorCode.INVALID_PARTITIONS),
        ("copy", 2, ErrorCode.POLICY_VIOLATION),
        ("nope", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_that_cannot_be_added_are_refused(
    running: Setup, name: str, count: int, code: ErrorCode, validate_only: bool
) -> None:
    before = dict(running.cluster.topics)
    assert running.add_partitions(name, count, validate_only=validate_only) is code
    assert running.cluster.topics == before


def test_partitions_are_added_where_the_client_says(running: Setup) -> None:
    for brokers in [(3,)], [(1, 2)], [(1,), (1,)]:
        code = running.add_partitions("t", 4, assignments=[{"broker_ids": ids} for ids in brokers])
        assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert running.add_partitions("t", 4, validate_only=True) is ErrorCode.NONE
    assert len(running.cluster.topics["t"].partitions) == 3
    assert running.add_partitions("t", 4, assignments=[{"broker_ids": (2,)}]) is ErrorCode.NONE
    assert running.cluster.topics["t"].partitions[3].replicas == (2,)


# Replicas


def test_nothing_has_several_replicas_while_brokers_do_not_copy(running: Setup) -> None:
    both = [{"partition_index": 0, "broker_ids": (1, 2)}]
    anywhere = {"num_partitions": -1, "replication_factor": -1}
    codes = running.create(
        {"name": "two", "replication_factor": 2}, {"name": "placed", **anywhere, "assignments": both}
    )
    assert set(codes.values()) == {ErrorCode.INVALID_REPLICATION_FACTOR}
    running.configure(default_replicas=2)
    assert running.create({"name": "usual"}) == {"usual": ErrorCode.INVALID_REPLICATION_FACTOR}
    assert set(running.cluster.topics) == {"t", "copy"}


def test_a_topic_has_as_many_replicas_as_its_client_or_the_brokers_file_says(running: Setup) -> None:
    running.copying()
    running.configure(default_replicas=2)
    codes = running.create(
        {"name": "usual", "num_partitions": 2},
        {"name": "one", "replication_factor": 1},
        {"name": "many", "replication_factor": 3},
        {"name": "safe", "configs": [{"name": "min.insync.replicas", "value": "2"}]},
        {"name": "safest", "configs": [{"name": "min.insync.replicas", "value": "3"}]},
    )
    assert codes == {
        "usual": ErrorCode.NONE,
        "one": ErrorCode.NONE,
        "many": ErrorCode.INVALID_REPLICATION_FACTOR,
        "safe": ErrorCode.NONE,
        "safest": ErrorCode.INVALID_CONFIG,
    }
    topics = running.cluster.topics
    assert sorted(sorted(state.replicas) for state in topics["usual"].partitions.values()) == [[1, 2], [1, 2]]
    assert topics["one"].fewest_replicas == 1
    assert [topics[name].minimum(0) for name in ("usual", "safe")] == [1, 2]


def test_brokers_of_a_new_topics_replicas_may_be_named(running: Setup) -> None:
    running.copying()

    def placed(*brokers: tuple[int, ...], first: int = 0) -> list[dict[str, Any]]:
        return [{"partition_index": n, "broker_ids": ids} for n, ids in enumerate(brokers, first)]

    anywhere = {"num_partitions": -1, "replication_factor": -1}
    codes = running.create(
        {"name": "placed", **anywhere, "assignments": placed((2, 1), (1, 2))},
        {"name": "counted", **anywhere, "num_partitions": 2, "assignments": placed((2, 1), (1, 2))},
        {"name": "factored", **anywhere, "replication_factor": 2, "assignments": placed((2, 1))},
        {"name": "gap", **anywhere, "assignments": placed((2, 1), first=1)},
        {"name": "twice", **anywhere, "assignments": placed((2, 1)) * 2},
        {"name": "nobody", **anywhere, "assignments": placed((3,))},
    )
    wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert codes == {
        "placed": ErrorCode.NONE,
        "counted": ErrorCode.INVALID_REQUEST,
        "factored": ErrorCode.INVALID_REQUEST,
        **dict.fromkeys(("gap", "twice", "nobody"), wrong),
    }
    partitions = running.cluster.topics["placed"].partitions
    assert [partitions[number].replicas for number in range(2)] == [(2, 1), (1, 2)]


def test_clients_are_told_which_replicas_are_in_sync_offline_or_eligible_and_in_which_racks(
    running: Setup,
) -> None:
    state = PartitionState(2, (3, 2, 1), {2: "b"}, 7, eligible={3: "c", 1: "a"})
    running.cluster.topics = {"several": TopicState("several", uuid.uuid4(), {}, {0: state})}
    racks = {1: "", 2: "b"}
    running.cluster.brokers = {
        number: dataclasses.replace(broker, rack=racks[number])
        for number, broker in running.cluster.brokers.items()
    }
    asked = {"topics": [{"name": "several"}]}
    metadata = ask(running, ApiKey.METADATA, 12, asked)
    described = ask(running, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {**asked, "cursor": None})
    for answer in metadata, described:
        ((partition,),) = [topic.partitions for topic in answer.topics]
        assert (partition.leader_id, partition.leader_epoch) == (2, 7)
        assert (partition.replica_nodes, partition.isr_nodes) == ((3, 2, 1), (2,))
        assert partition.offline_replicas == (3,)
    assert partition.eligible_leader_replicas == (3, 1)
    cluster = ask(running, ApiKey.DESCRIBE_CLUSTER, 0, {})
    for answer in metadata, cluster:
        assert [broker.rack for broker in answer.brokers] == [None, "b"]


def test_who_is_eligible_is_forgotten_in_the_write_that_lowers_the_minimum(running: Setup) -> None:
    state = PartitionState(2, (1, 2, 3), {2: "b"}, 7, eligible={1: "a", 3: "c"})
    several = TopicState("several", uuid.uuid4(), {}, {0: state})
    running.cluster.topics = {**running.cluster.topics, "several": several}
    assert several.minimum(0) == 2
    code, reason = running.alter(("min.insync.replicas", SET, "4"), resource_name="several")
    assert (code, reason) == (ErrorCode.INVALID_CONFIG, "min.insync.replicas=4: a partition has 3 replicas")
    running.alter(("retention.ms", SET, "5"), resource_name="several")
    assert running.cluster.topics["several"].partitions[0] == state
    assert running.settings("several")["min.insync.replicas"].value == "2"
    assert running.alter(("min.insync.replicas", SET, "1"), resource_name="several") == (0, None)
    lowered = running.cluster.topics["several"]
    assert (lowered.minimum(0), lowered.partitions[0]) == (1, dataclasses.replace(state, eligible={}))
    told = running.settings("several")["min.insync.replicas"]
    assert (told.value, told.config_source, told.config_type) == ("1", FROM_TOPIC, 3)


# Topics


def test_each_topic_of_a_request_is_answered_for_itself(running: Setup) -> None:
    running.configure(max_partitions_per_topic=10)
    codes = running.create(
        {"name": "new", "num_partitions": -1},
        {"name": "t"},
        {"name": "a b"},
        {"name": "twice"},
        {"name": "twice"},
        {"name": "two", "replication_factor": 2},
        {"name": "many", "num_partitions": 11},
        {"name": "none", "num_partitions": 0},
        {"name": "placed", "assignments": [{"partition_index": 0, "broker_ids": (3,)}], "num_partitions": -1},
        {"name": "odd", "configs": [{"name": "nonsense", "value": "1"}]},
    )
    assert codes == {
        "new": ErrorCode.NONE,
        "t": ErrorCode.TOPIC_ALREADY_EXISTS,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
        "two": ErrorCode.INVALID_REPLICATION_FACTOR,
        "many": ErrorCode.INVALID_PARTITIONS,
        "none": ErrorCode.INVALID_PARTITIONS,
        "placed": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "odd": ErrorCode.INVALID_CONFIG,
    }
    assert set(running.cluster.topics) == {"t", "copy", "new"}
    assert len(running.cluster.topics["new"].partitions) == 4


def test_a_topic_that_differs_from_another_only_in_dots_and_underscores_is_refused(running: Setup) -> None:
    assert running.create({"name": "a.b_c"}) == {"a.b_c": ErrorCode.NONE}
    codes = running.create({"name": "a_b.c"}, {"name": "a.b_c"}, {"name": "a-b_c"})
    assert codes == {
        "a_b.c": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a.b_c": ErrorCode.TOPIC_ALREADY_EXISTS,
        "a-b_c": ErrorCode.NONE,
    }
    assert running.create({"name": "a_b_c"}, validate_only=True) == {
        "a_b_c": ErrorCode.INVALID_TOPIC_EXCEPTION
    }


def test_a_topic_can_be_tried_without_creating_it(running: Setup) -> None:
    codes = running.create({"name": "new"}, {"name": "t"}, {"name": "a b"}, validate_only=True)
    assert codes == {
        "new": ErrorCode.NONE,
        "t": ErrorCode.TOPIC_ALREADY_EXISTS,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert "new" not in running.cluster.topics
    running.cluster.brokers = {}
    assert running.create({"name": "new"}, validate_only=True) == {"new": ErrorCode.LEADER_NOT_AVAILABLE}


def test_a_topic_whose_logs_open_too_slowly_is_there_but_the_time_was_up(
    running: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, opened = threading.Event(), LogDirectory.partition

    def slowly(*arguments: Any, **options: Any) -> Any:
        assert free.wait(WAIT_S)
        return opened(*arguments, **options)

    monkeypatch.setattr(LogDirectory, "partition", slowly)
    assert running.create({"name": "slow"}, timeout=20) == {"slow": ErrorCode.REQUEST_TIMED_OUT}
    assert "slow" in running.cluster.topics
    free.set()
    running.until("it is opened", lambda: ("slow", 0) in running.broker.partitions)


def test_the_logs_of_topics_of_one_request_are_opened_side_by_side(
    running: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, opened = threading.Barrier(3), LogDirectory.partition

    def together(*arguments: Any, **options: Any) -> Any:
        opening.wait(WAIT_S)
        return opened(*arguments, **options)

    monkeypatch.setattr(LogDirectory, "partition", together)
    names = ("a", "b", "c")
    assert running.create(*({"name": name} for name in names)) == dict.fromkeys(names, ErrorCode.NONE)
    assert {(name, 0) for name in names} <= running.broker.partitions.keys()


def test_a_topic_named_twice_is_deleted_once(running: Setup) -> None:
    answer = ask(running, ApiKey.DELETE_TOPICS, 3, {"topic_names": ("t", "nope", "t"), "timeout": 1000})
    assert [(each.name, each.error_code) for each in answer.responses] == [
        ("t", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_topics_that_are_not_there_cost_no_deletion_each(running: Setup) -> None:
    names = ("t", *(f"nobody-{number}" for number in range(1000)))
    answer = ask(running, ApiKey.DELETE_TOPICS, 3, {"topic_names": names, "timeout": 1000})
    errors = {result.name: ErrorCode(result.error_code) for result in answer.responses}
    assert errors.pop("t") == ErrorCode.NONE
    assert set(errors.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(errors) == 1000
    assert isinstance(running.cluster, ChangingCluster)
    assert running.cluster.deletions == ["t"]


def test_ids_of_topics_that_are_not_there_do_not_cost_a_look_at_all_topics_each(running: Setup) -> None:
    looks: list[str] = []

    class Topics(dict[str, TopicState]):
        def values(self) -> Any:
            looks.append("at all")
            return super().values()

    running.cluster.topics = Topics(running.cluster.topics)
    topics = [{"name": None, "topic_id": uuid.uuid4()} for _ in range(900)]
    answer = ask(running, ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 1000})
    assert {result.error_code for result in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert len(answer.responses) == 900
    assert len(looks) < 10, "to count them, for all ids together, and whenever the broker has stood still"


@pytest.mark.parametrize("auto_create", [True, False])
def test_a_name_no_topic_can_have_is_told_at_once(running: Setup, auto_create: bool) -> None:
    running.configure(auto_create_topics=auto_create)
    answer = ask(
        running, ApiKey.METADATA, 8, {"topics": [{"name": "a b"}], "allow_auto_topic_creation": True}
    )
    assert list(error_codes(answer)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_topic_asked_for_many_times_is_told_once(running: Setup) -> None:
    wanted = {"topics": [{"name": "t"}, {"name": "nope"}] * 50, "allow_auto_topic_creation": False}
    answer = ask(running, ApiKey.METADATA, 8, wanted)
    assert [topic.name for topic in answer.topics] == ["t", "nope"]
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
    assert len(ask(running, ApiKey.DESCRIBE_CONFIGS, 1, {"resources": [resource] * 50}).results) == 1


@pytest.mark.parametrize("version", [1, 4, 8])
def test_a_topic_is_created_when_the_broker_is_set_to(running: Setup, version: int) -> None:
    running.configure(auto_create_topics=True)
    wanted = {"topics": [{"name": "new"}]} | ({"allow_auto_topic_creation": True} if version >= 4 else {})
    assert list(error_codes(ask(running, ApiKey.METADATA, version, wanted))) == [
        ErrorCode.LEADER_NOT_AVAILABLE
    ]
    running.until("it is there", lambda: ("new", 3) in running.broker.partitions)
    assert set(error_codes(ask(running, ApiKey.METADATA, version, wanted))) == {ErrorCode.NONE}


def test_a_topic_that_many_ask_for_is_created_once(running: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    running.configure(auto_create_topics=True)
    begun: list[str] = []
    go = threading.Event()

    real = running.cluster.create_topic  # type: ignore[attr-defined]

    def create(name: str, *how: Any, **placed: Any) -> Any:
        begun.append(name)
        assert go.wait(WAIT_S)
        return real(name, *how, **placed)

    monkeypatch.setattr(running.cluster, "create_topic", create)
    wanted = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    body = request_body(ApiKey.METADATA, 8, wanted)
    handlers = handlers_of(running.broker)
    frame = struct.pack(">hhih", ApiKey.METADATA, 8, 7, -1) + body
    for _ in range(10):
        handlers.handle(AskingClient(), memoryview(bytearray(frame)))
    go.set()
    running.until("it is there", lambda: ("new", 3) in running.broker.partitions)
    assert begun == ["new"]


def test_metadata_says_of_an_id_that_no_topic_has_that_the_id_is_unknown(running: Setup) -> None:
    topic_id = uuid.uuid4()
    asked = {"topics": [{"name": None, "topic_id": topic_id}], "allow_auto_topic_creation": True}
    (told,) = ask(running, ApiKey.METADATA, 12, asked).topics
    assert (told.error_code, told.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, topic_id)


# Sizes


def test_sizes_on_the_disk_are_told_of_what_is_stored_here(running: Setup) -> None:
    batch = bytearray(build_batch([Message(1, None, b"x" * 500)]))
    running.broker.produce("t", 1, memoryview(batch), Outcome(), 0)
    running.turn()

    def told(topics: Any) -> dict[str, dict[int, int]]:
        (directory,) = ask(running, ApiKey.DESCRIBE_LOG_DIRS, 1, {"topics": topics}).results
        assert (directory.error_code, directory.log_dir) == (0, "./data")
        return {
            found.name: {p.partition_index: p.partition_size for p in found.partitions}
            for found in directory.topics
        }

    assert told(None) == {"copy": {0: 0}, "t": {0: 0, 1: len(batch)}}
    asked = [{"topic": "t", "partitions": (1, 2, 7)}, {"topic": "nope", "partitions": (0,)}]
    assert told(asked) == {"t": {1: len(batch)}}


def test_log_directories_are_described_apart_from_the_loop_which_a_disk_that_hangs_must_not_stop(
    running: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[threading.Thread] = []

    def disk_usage(path: str) -> None:
        asked.append(threading.current_thread())
        raise OSError(f"nobody knows the room of {path}")

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    (directory,) = ask(running, ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}).results
    assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
    assert [thread is threading.current_thread() for thread in asked] == [False]


# Records


def test_records_are_deleted_up_to_an_offset_and_never_those_of_a_mirror(running: Setup) -> None:
    batches = [bytearray(build_batch([Message(time, None, b"x")] * 2)) for time in (100, 200)]
    for batch in batches:
        running.broker.produce("t", 0, memoryview(batch), Outcome(), 0)
    running.turn()
    second = len(batches[0])
    running.until("it is flushed", lambda: running.high_watermark() == second + 2)

    def deleted(topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
        asked = {"partition_index": partition, "offset": offset}
        values = {"topics": [{"name": topic, "partitions": [asked]}], "timeout": 1000}
        found = ask(running, ApiKey.DELETE_RECORDS, 2, values).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    def listed(timestamp: int) -> int:
        asked = {"partition_index": 0, "timestamp": timestamp}
        values = {"replica_id": -1, "topics": [{"name": "t", "partitions": [asked]}]}
        return int(ask(running, ApiKey.LIST_OFFSETS, 7, values).topics[0].partitions[0].offset)

    assert deleted("t", second) == (0, second)
    assert (listed(-2), listed(-3), listed(0)) == (second, second, second)
    assert deleted("t", 1) == (0, second), "what is gone stays gone"
    assert deleted("t", second + 3) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted("t", -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted("t", -1) == (0, second + 2)
    assert (listed(-2), listed(-1), listed(-3)) == (second + 2, second + 2, -1)
    assert deleted("copy", -1) == (ErrorCode.POLICY_VIOLATION, -1)
    assert deleted("t", -1, partition=2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_producers_are_described_with_their_last_sequence(running: Setup) -> None:
    batch = bytearray(
        build_batch([Message(100, None, b"x")] * 3, producer_id=7, producer_epoch=2, base_sequence=4)
    )
    running.broker.produce("t", 0, memoryview(batch), Outcome(), 0)
    running.turn()
    asked = {"topics": [{"name": "t", "partition_indexes": [0, 0]}, {"name": "t", "partition_indexes": [0]}]}
    (topic,) = ask(running, ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics
    (partition,) = topic.partitions
    (one,) = partition.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (7, 2, 6)


def describe_partitions(running: Setup, names: Sequence[str], cursor: Any, limit: int) -> Any:
    """Describe the topics (none: all), from the cursor at which another answer ended."""
    asked = {"topics": [{"name": name} for name in names], "response_partition_limit": limit}
    body = request_body(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    if cursor is not None:  # the request with a cursor
        name = cursor.topic_name.encode()
        place = struct.pack(">i", cursor.partition_index)
        body = body[:-2] + b"\1" + bytes([len(name) + 1]) + name + place + b"\0\0"
    return ask(running, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)


def test_partitions_are_described_in_parts_that_go_on_where_they_ended(running: Setup) -> None:
    seen: list[tuple[str, int]] = []
    cursor: Any = None
    for _ in range(20):
        answer = describe_partitions(running, [], cursor, 1)
        seen += [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
        for one in (one for each in answer.topics for one in each.partitions):
            assert (one.eligible_leader_replicas, one.last_known_elr) == ((), ()), "Java does not take null"
        cursor = answer.next_cursor
        if cursor is None:
            break
    topics = running.cluster.topics
    assert seen == [(name, number) for name in sorted(topics) for number in sorted(topics[name].partitions)]


def test_a_topic_behind_one_that_was_deleted_meanwhile_is_described_from_its_first_partition(
    running: Setup,
) -> None:
    running.cluster.topics = {name: topic(name, 1, 1, 1) for name in ("a", "b")}
    cursor = describe_partitions(running, ["a", "b"], None, 2).next_cursor
    assert (cursor.topic_name, cursor.partition_index) == ("a", 2)
    del running.cluster.topics["a"]
    deleted, rest = describe_partitions(running, ["a", "b"], cursor, 10).topics
    assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.partition_index for one in rest.partitions] == [0, 1, 2]


def test_a_cluster_tells_its_brokers_and_its_resources(running: Setup) -> None:
    told = ask(running, ApiKey.DESCRIBE_CLUSTER, 2, {})
    assert [broker.broker_id for broker in told.brokers] == [*running.cluster.brokers]
    controllers = ask(running, ApiKey.DESCRIBE_CLUSTER, 2, {"endpoint_type": 2})
    assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

    def listed(version: int, *types: int) -> dict[int, set[str]]:
        answer = ask(running, ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": types})
        found: dict[int, set[str]] = {}
        for one in answer.config_resources:
            found.setdefault(one.resource_type, set()).add(one.resource_name)
        return found

    everything = {2: set(running.cluster.topics), 4: {str(one) for one in running.cluster.brokers}}
    assert listed(1) == everything
    assert listed(1, 2) == {2: everything[2]}
    assert listed(1, 8, 16, 32) == listed(0) == {}
    assert ask(running, ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": (3,)}).error_code == 35


def test_a_broker_is_not_unregistered_by_others_and_no_transaction_is_listed(running: Setup) -> None:
    for number, code in ((1, ErrorCode.INVALID_REQUEST), (7, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        refused = ask(running, ApiKey.UNREGISTER_BROKER, 0, {"broker_id": number})
        assert refused.error_code == code
        assert f"broker {number}" in refused.error_message
    listed = ask(running, ApiKey.LIST_TRANSACTIONS, 2, {"state_filters": ("Ongoing", "New", "New")})
    assert (listed.error_code, listed.transaction_states) == (ErrorCode.NONE, ())
    assert listed.unknown_state_filters == ("New",)


def test_a_broker_without_an_authorizer_has_no_quotas_and_no_users_and_takes_none(running: Setup) -> None:
    users = ask(running, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
    assert (users.error_code, users.results) == (ErrorCode.NONE, ())
    (nobody,) = ask(running, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": ({"name": "u"},)}).results
    assert nobody.error_code == ErrorCode.RESOURCE_NOT_FOUND
    told = ask(running, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": (), "strict": False})
    assert (told.error_code, told.entries) == (ErrorCode.NONE, ())
    twice = ({"entity_type": "user", "match_type": 2, "match": None},) * 2
    asked = {"components": twice, "strict": False}
    assert ask(running, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, asked).error_code == ErrorCode.INVALID_REQUEST
    entry = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}
    (refused,) = ask(running, ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry]}).entries
    assert refused.error_code == ErrorCode.SECURITY_DISABLED


# Offsets


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_listed_by_time_to_the_message(running: Setup, version: int) -> None:
    batch = bytearray(build_batch([Message(time, None, b"x") for time in (100, 300, 200)]))
    running.broker.produce("t", 0, memoryview(batch), Outcome(), 0)
    running.turn()
    running.until("it is flushed", lambda: running.high_watermark())

    def listed(timestamp: int, partition: int = 0) -> tuple[int, int, int]:
        asked = {"partition_index": partition, "timestamp": timestamp}
        answer = ask(
            running,
            ApiKey.LIST_OFFSETS,
            version,
            {"replica_id": -1, "topics": [{"name": "t", "partitions": [asked]}]},
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    assert listed(-1) == (0, 3, -1)
    assert listed(-2) == (0, 0, -1)
    assert listed(-3) == (0, 1, 300), "the largest timestamp"
    assert (listed(-4), listed(-5)) == ((0, 0, -1), (0, -1, -1)), "there is one tier"
    assert listed(-6) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    assert (listed(0), listed(101), listed(300)) == ((0, 0, 100), (0, 1, 300), (0, 1, 300))
    assert listed(301) == (0, -1, -1)
    assert listed(-1, partition=2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    twice = [{"partition_index": 0, "timestamp": -1}] * 2
    answer = ask(
        running,
        ApiKey.LIST_OFFSETS,
        version,
        {"replica_id": -1, "topics": [{"name": "t", "partitions": twice}]},
    )
    assert list(error_codes(answer)) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert listed(5, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_client_hears_where_the_batches_of_an_epoch_end(running: Setup, version: int) -> None:
    partition = running.broker.partition("t", 0)
    for epoch in (0, 4):
        partition.leader_epoch = epoch
        partition.log.lead(epoch)
        batch = bytearray(build_batch([Message(1, None, b"x"), Message(2, None, b"y")]))
        running.broker.produce("t", 0, memoryview(batch), Outcome(), 0)
        running.turn()
    end = len(batch) + 2
    running.until("it is flushed", lambda: running.high_watermark() == end)

    def told(epoch: int, current: int = -1, number: int = 0) -> tuple[int, int, int]:
        asked = {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current}
        topics = {"topics": [{"topic": "t", "partitions": [asked]}]}
        found = ask(running, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert told(0) == told(3) == (0, 0, len(batch))
    assert told(4) == told(4, current=4) == (0, 4, end)
    assert told(5) == (0, -1, -1)
    assert told(0, current=3) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert told(0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert told(0, number=2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)


def test_an_epoch_never_ends_above_what_consumers_see(running: Setup) -> None:
    partition = running.broker.partition("t", 0)
    batch = bytearray(build_batch([Message(1, None, b"x")]))
    partition.log.append([batch], ["User:a"])
    partition.log.lead(1)
    partition.log.append([batch], ["User:a"])
    for epoch in (0, 1):
        asked = {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": epoch}]}]}
        answer = ask(running, ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, asked).topics[0].partitions[0]
        assert (answer.leader_epoch, answer.end_offset) == (epoch, 0)


def test_an_epoch_that_retention_took_ends_where_what_is_left_begins(running: Setup) -> None:
    """As in Kafka: epoch -1 would say that the log was truncated, and consumers would reset."""
    partition = running.broker.partition("t", 0)
    batch = bytearray(build_batch([Message(1, None, b"x")]))
    partition.log.append([batch], ["User:a"])
    partition.log.publish(running.whole_log().flush())
    end = partition.log.high_watermark
    partition.log.epochs._replace(((3, 0),))  # all of the epochs before has gone, and 3 begins there
    asked = {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 1}]}]}
    answer = ask(running, ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, asked).topics[0].partitions[0]
    assert (answer.leader_epoch, answer.end_offset) == (1, 0)
    assert end > 0


def test_an_epoch_ends_where_an_empty_log_of_a_newer_leader_does(running: Setup) -> None:
    """A copy that was begun after retention took every batch knows no epoch."""
    partition = running.broker.partition("t", 0)
    partition.leader_epoch = 7
    for epoch, expected in ((5, (5, 0)), (8, (-1, -1))):
        asked = {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": epoch}]}]}
        answer = ask(running, ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, asked).topics[0].partitions[0]
        assert (answer.leader_epoch, answer.end_offset) == expected
