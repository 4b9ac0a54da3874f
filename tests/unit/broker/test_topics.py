"""Topic settings by Kafka's names become the log's own."""

from __future__ import annotations

import re

import pytest

from millrace.config import BrokerConfig, LogConfig
from millrace.wire.admin_messages import ConfigType
from millrace_broker.partitions.topic_settings import (
    BROKER_FIXED,
    BROKER_SETTINGS,
    FIXED,
    SETTINGS,
    WITHOUT_EFFECT,
    InvalidTopicConfig,
    check_topic_settings,
    topic_log_config,
)
from tests.support import REPOSITORY

BROKER = BrokerConfig(broker_id=1, cluster="test", log=LogConfig(flush_ms=7), max_frame_bytes=16 << 20)


def test_settings_go_over_the_brokers_defaults() -> None:
    config = topic_log_config(
        BROKER, {"segment.bytes": "2048", "retention.ms": "-1", "retention.bytes": "10"}
    )
    assert (config.segment_bytes, config.retention_ms, config.retention_bytes, config.flush_ms) == (
        2048,
        None,
        10,
        7,
    )
    assert topic_log_config(BROKER, {}) == BROKER.log


def test_what_millrace_does_anyway_may_be_asked_for() -> None:
    same = {name: only.value for name, only in FIXED.items()}
    check_topic_settings(BROKER, same, 3)
    assert topic_log_config(BROKER, same) == BROKER.log


def test_what_is_about_parts_that_are_not_here_may_be_asked_for() -> None:
    values = {ConfigType.LONG: "-2", ConfigType.DOUBLE: "0.5", ConfigType.BOOLEAN: "true"}
    hints = {name: (idle.values or [values[idle.type]])[-1] for name, idle in WITHOUT_EFFECT.items()}
    check_topic_settings(BROKER, hints, 3)
    assert topic_log_config(BROKER, hints) == BROKER.log


def test_the_page_tells_every_setting_its_limits_and_its_only_value() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    page = page[page.index("## A topic:") : page.index("### Batches")]
    topics, _, broker = page.partition("### A broker's settings")
    cells = [[cell.strip() for cell in row.split("|")[1:3]] for row in topics.splitlines() if "| `" in row]
    told = {name.strip("`"): what for name, what in cells}
    assert list(told) == [*SETTINGS, "min.insync.replicas", *FIXED, *WITHOUT_EFFECT]
    for name, setting in SETTINGS.items():
        bound = f", `{setting.bound}`" if setting.bound else ""
        unlimited = ", or -1 for no limit" if setting.unlimited else ""
        assert told[name] == f"{setting.smallest}{bound}{unlimited}", name
    for name, only in FIXED.items():
        assert told[name] == (f"`{only.value}`" if only.value else "empty"), name
    assert {name: told[name] for name in WITHOUT_EFFECT} == {
        name: idle.reason for name, idle in WITHOUT_EFFECT.items()
    }
    of_brokers = dict(re.findall(r"^\| `([a-z.]+)` \| (=? ?`[^`]+`) \|$", broker, re.MULTILINE))
    assert of_brokers == {name: f"`{key}`" for name, key in BROKER_SETTINGS.items()} | {
        name: f"= `{value}`" for name, (value, _) in BROKER_FIXED.items()
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.after.max.ms", "3600000"),
        ("remote.storage.enable", "true"),
        ("file.delete.delay.ms", "soon"),
        ("min.cleanable.dirty.ratio", "-1"),
        ("preallocate", "yes"),
        ("segment.ms", "0"),
        ("retention.ms", "-2"),
        ("segment.bytes", "10"),
        ("flush.ms", "soon"),
        ("flush.ms", "-1"),
        ("nonsense", "1"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=name):
        topic_log_config(BROKER, {name: value})
    with pytest.raises(InvalidTopicConfig, match=name):
        check_topic_settings(BROKER, {name: value}, 3)


def test_a_value_that_is_not_supported_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidTopicConfig, match=r"only 'delete' is supported: .* none is compacted"):
        check_topic_settings(BROKER, {"cleanup.policy": "compact"}, 3)
    with pytest.raises(InvalidTopicConfig, match=r"only 'CreateTime' is supported: .* its producer gave it"):
        check_topic_settings(BROKER, {"message.timestamp.type": "LogAppendTime"}, 3)


@pytest.mark.parametrize("name", ["retention.ms", "segment.bytes"])
def test_a_number_that_no_log_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=f"{name}=9223372036854775808: at most"):
        check_topic_settings(BROKER, {name: str(1 << 63)}, 3)


def test_no_topic_is_given_larger_messages_than_its_broker_takes_as_a_request() -> None:
    check_topic_settings(BROKER, {"max.message.bytes": str(16 << 20)}, 3)
    with pytest.raises(
        InvalidTopicConfig, match=r"max.message.bytes=16777217: at most 16777216, .*max_frame"
    ):
        check_topic_settings(BROKER, {"max.message.bytes": str((16 << 20) + 1)}, 3)


def test_a_topic_that_was_given_larger_messages_is_served_up_to_the_brokers_limit() -> None:
    config = topic_log_config(BROKER, {"max.message.bytes": "536870912", "retention.ms": "5"})
    assert (config.max_message_bytes, config.retention_ms) == (16 << 20, 5)


def test_no_more_replicas_must_be_in_sync_than_there_are() -> None:
    check_topic_settings(BROKER, {"min.insync.replicas": "3"}, 3)
    with pytest.raises(InvalidTopicConfig, match=r"min.insync.replicas=4: a partition has 3 replicas"):
        check_topic_settings(BROKER, {"min.insync.replicas": "4"}, 3)
    assert topic_log_config(BROKER, {"min.insync.replicas": "3"}) == BROKER.log
