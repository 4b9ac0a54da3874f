"""Settings of a topic, by Kafka's names, and what they make of the broker's own defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from millrace.config import LogConfig
from millrace.errors import BrokerError, ErrorCode


class InvalidTopicConfig(BrokerError):
    """A topic setting is unknown or its value cannot be."""

    code = ErrorCode.INVALID_CONFIG


_FIELDS = {
    "segment.bytes": ("segment_bytes", 1024, False),
    "flush.messages": ("flush_messages", 1, False),
    "flush.ms": ("flush_ms", 0, False),
    "retention.ms": ("retention_ms", 0, True),
    "retention.bytes": ("retention_bytes", 0, True),
    "max.message.bytes": ("max_message_bytes", 1, False),
}
"""Kafka's name: our field, its smallest value, whether -1 means no limit."""

_FIXED = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""What Millrace does in any case; clients may say so, but not ask for anything else."""


def topic_log_config(default: LogConfig, settings: Mapping[str, str]) -> LogConfig:
    """How a topic's partitions are kept: its settings over the broker's defaults.

    Raises InvalidTopicConfig, one line that names the setting.
    """
    changes: dict[str, int | None] = {}
    for name, text in settings.items():
        if name in _FIXED:
            if text != _FIXED[name]:
                raise InvalidTopicConfig(f"{name}={text}: only {_FIXED[name]} is supported")
            continue
        if name not in _FIELDS:
            raise InvalidTopicConfig(f"unknown topic setting {name!r}; known: {', '.join(_FIELDS)}")
        field, smallest, unlimited = _FIELDS[name]
        try:
            value = int(text)
        except ValueError:
            raise InvalidTopicConfig(f"{name}={text!r} is not a number") from None
        if unlimited and value == -1:
            changes[field] = None
        elif value < smallest:
            raise InvalidTopicConfig(f"{name}={text}: at least {smallest}")
        else:
            changes[field] = min(value, (1 << 63) - 1)
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]  # names checked above
