"""Topic settings by Kafka's names become the log's own."""

from __future__ import annotations

import pytest

from millrace.broker.topic_settings import InvalidTopicConfig, topic_log_config
from millrace.config import LogConfig


def test_settings_go_over_the_brokers_defaults() -> None:
    default = LogConfig(flush_ms=7)
    config = topic_log_config(
        default, {"segment.bytes": "2048", "retention.ms": "-1", "retention.bytes": "10"}
    )
    assert (config.segment_bytes, config.retention_ms, config.retention_bytes, config.flush_ms) == (
        2048, None, 10, 7,
    )  # fmt: skip
    assert topic_log_config(default, {}) == default


def test_what_millrace_does_anyway_may_be_asked_for() -> None:
    same = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
    assert topic_log_config(LogConfig(), same) == LogConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"), ("retention.ms", "-2"), ("segment.bytes", "10"), ("flush.ms", "soon"),
        ("flush.ms", "-1"), ("nonsense", "1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=name):
        topic_log_config(LogConfig(), {name: value})
