"""Settings of a topic, by Kafka's names, and what they make of the broker's own defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config import BrokerConfig, LogConfig
from millrace.errors import BrokerError, ErrorCode

_INT64_MAX = (1 << 63) - 1


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
    bound: str | None = None
    """The broker's own setting that no topic may exceed."""

    def largest(self, broker: BrokerConfig) -> int:
        """The largest value that a topic of this broker can have."""
        return _INT64_MAX if self.bound is None else int(getattr(broker, self.bound))

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
        "max_message_bytes", 1, False, "The largest batch that a producer may send.", "max_frame_bytes"
    ),
}

FIXED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""What Millrace does in any case; clients may say so, but not ask for anything else."""


def check_topic_settings(broker: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Refuse settings that a topic cannot be given; InvalidTopicConfig is one line that names the setting."""
    for name, value in _values(settings).items():
        setting = SETTINGS[name]
        largest = setting.largest(broker)
        if value is not None and value > largest:
            whose = f", the broker's {setting.bound}" if setting.bound else ""
            raise InvalidTopicConfig(f"{name}={value}: at most {largest}{whose}")


def topic_log_config(broker: BrokerConfig, settings: Mapping[str, str]) -> LogConfig:
    """How a topic's partitions are kept: its settings over the broker's defaults.

    A value above what this broker allows counts as the largest that it allows: another broker or an older
    version has taken it, and the topic must be served all the same. Raises InvalidTopicConfig.
    """
    changes = {
        SETTINGS[name].field: value if value is None else min(value, SETTINGS[name].largest(broker))
        for name, value in _values(settings).items()
    }
    return dataclasses.replace(broker.log, **changes)  # type: ignore[arg-type]  # names checked below


def _values(settings: Mapping[str, str]) -> Mapping[str, int | None]:
    """The numbers among a topic's settings, None for no limit; InvalidTopicConfig for what cannot be."""
    values: dict[str, int | None] = {}
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
            values[name] = None
        elif value < setting.smallest:
            raise InvalidTopicConfig(f"{name}={text}: at least {setting.smallest}")
        else:
            values[name] = value
    return values
