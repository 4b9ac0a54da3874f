"""Settings of a topic, by Kafka's names, and what they make of the broker's own defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config import LogConfig
from millrace.errors import BrokerError, ErrorCode


class InvalidTopicConfig(BrokerError):
    """A topic setting is unknown or its value cannot be."""

    code = ErrorCode.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A number that a topic may set for itself: which of our fields it is, and what values it takes."""

    field: str
    smallest: int
    unlimited: bool
    """True when -1 means no limit."""
    documentation: str

    def text(self, config: LogConfig) -> str:
        """What this setting is in `config`, as clients write it."""
        value = getattr(config, self.field)
        return "-1" if value is None else str(value)


SETTINGS: Mapping[str, TopicSetting] = {
    "segment.bytes": TopicSetting(
        "segment_bytes", 1024, False, "A partition's log begins a new file when one would exceed this."
    ),
    "flush.messages": TopicSetting(
        "flush_messages", 1, False, "Messages are brought to the disk, and shown, after this many."
    ),
    "flush.ms": TopicSetting(
        "flush_ms", 0, False, "Messages are brought to the disk, and shown, this long after they came."
    ),
    "retention.ms": TopicSetting(
        "retention_ms", 0, True, "Files are deleted this long after their last append; -1 keeps them."
    ),
    "retention.bytes": TopicSetting(
        "retention_bytes", 0, True, "The oldest files of a partition larger than this are deleted; -1: none."
    ),
    "max.message.bytes": TopicSetting(
        "max_message_bytes", 1, False, "The largest batch that a producer may send."
    ),
}

FIXED: Mapping[str, str] = {
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
    if not settings:
        return default
    changes: dict[str, int | None] = {}
    for name, text in settings.items():
        if name in FIXED:
            if text != FIXED[name]:
                raise InvalidTopicConfig(f"{name}={text}: only {FIXED[name]} is supported")
            continue
        if name not in SETTINGS:
            raise InvalidTopicConfig(f"unknown topic setting {name!r}; known: {', '.join(SETTINGS)}")
        setting = SETTINGS[name]
        if not re.fullmatch(r"-?[0-9]{1,30}", text):
            raise InvalidTopicConfig(f"{name}={text!r} is not a number")
        value = int(text)
        if setting.unlimited and value == -1:
            changes[setting.field] = None
        elif value < setting.smallest:
            raise InvalidTopicConfig(f"{name}={text}: at least {setting.smallest}")
        else:
            changes[setting.field] = min(value, (1 << 63) - 1)
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]  # names checked above
