"""Settings of topics, by Kafka's names, and of the broker: what they may be, what holds, and who says so.

A topic's setting is its own (and may change at run time), else what the broker's file says, else the
product's default. The broker's settings are those of its file, under the names they have there; they and what
Millrace does in any case are read-only. Pure: values in, values out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.config import BrokerConfig, LogConfig
from millrace.coordination.state import MIN_INSYNC_REPLICAS, TopicState, default_minimum
from millrace.errors import BrokerError, ErrorCode
from millrace.wire.admin_messages import ORIGINS, ConfigSource, ConfigType, DescribedConfig

_INT64_MAX = (1 << 63) - 1


class InvalidTopicConfig(BrokerError, code=ErrorCode.INVALID_CONFIG):
    """A topic setting is unknown or its value cannot be."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A number that a topic may set for itself: which field of LogConfig it is, and what values it takes."""

    field: str
    smallest: int
    documentation: str
    unlimited: bool = False
    """True when -1 sets no limit."""
    bound: str | None = None
    """The broker's own setting that no topic may exceed."""

    def largest(self, broker: BrokerConfig) -> int:
        return _INT64_MAX if self.bound is None else int(getattr(broker, self.bound))

    def text(self, config: LogConfig) -> str:
        return _text(getattr(config, self.field))[0]


SETTINGS: Mapping[str, TopicSetting] = {
    "segment.bytes": TopicSetting(
        "segment_bytes", 1024, "A partition's log begins a new file when one would exceed this."
    ),
    "flush.messages": TopicSetting(
        "flush_messages", 1, "Messages are brought to the disk, and shown, after this many."
    ),
    "flush.ms": TopicSetting(
        "flush_ms", 0, "Messages are brought to the disk, and shown, this long after they came."
    ),
    "retention.ms": TopicSetting(
        "retention_ms", 0, "Files are deleted this long after their last append; -1 keeps them.", True
    ),
    "retention.bytes": TopicSetting(
        "retention_bytes", 0, "The oldest files of a partition larger than this are deleted; -1: none.", True
    ),
    "max.message.bytes": TopicSetting(
        "max_message_bytes", 1, "The largest batch that a producer may send.", bound="max_frame_bytes"
    ),
}

FIXED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
}
"""What Millrace does in any case; clients may say so, but not ask for anything else."""


def check_topic_settings(broker: BrokerConfig, settings: Mapping[str, str], replicas: int) -> None:
    """Refuse settings that a topic, whose partitions have that many replicas at least, cannot be given.

    InvalidTopicConfig is one line that names the setting.
    """
    values = _values(settings)
    if int(settings.get(MIN_INSYNC_REPLICAS, 1)) > replicas:
        raise InvalidTopicConfig(
            f"{MIN_INSYNC_REPLICAS}={settings[MIN_INSYNC_REPLICAS]}: a partition has {replicas} replicas"
        )
    for name, value in values.items():
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
    """Those of a topic's settings that its logs are kept by, None for no limit; InvalidTopicConfig for what
    cannot be."""
    values: dict[str, int | None] = {}
    for name, text in settings.items():
        if name in FIXED:
            if text != FIXED[name]:
                raise InvalidTopicConfig(f"{name}={text}: only {FIXED[name]} is supported")
            continue
        if not is_setting(name):
            known = ", ".join((*SETTINGS, MIN_INSYNC_REPLICAS))
            raise InvalidTopicConfig(f"unknown topic setting {name!r}; known: {known}")
        if not re.fullmatch(r"-?[0-9]{1,30}", text):
            raise InvalidTopicConfig(f"{name}={text!r} is not a number")
        value, setting = int(text), SETTINGS.get(name)
        smallest = 1 if setting is None else setting.smallest
        if setting is not None and setting.unlimited and value == -1:
            values[name] = None
        elif value < smallest:
            raise InvalidTopicConfig(f"{name}={text}: at least {smallest}")
        elif setting is not None:
            values[name] = value
    return values


def is_setting(name: str) -> bool:
    """True for what a topic may be given, if only what Millrace does in any case."""
    return name in SETTINGS or name in FIXED or name == MIN_INSYNC_REPLICAS


def describe_topic(broker: LogConfig, topic: TopicState) -> Iterator[DescribedConfig]:
    """Every setting of a topic; its synonyms are the values given anywhere, the one that counts first."""
    product = LogConfig()
    for name, setting in SETTINGS.items():
        default, ours = setting.text(product), setting.text(broker)
        synonyms = [(name, default, ConfigSource.DEFAULT)]
        if ours != default:
            synonyms.insert(0, (f"log.{setting.field}", ours, ConfigSource.STATIC_BROKER))
        if name in topic.settings:
            synonyms.insert(0, (name, topic.settings[name], ConfigSource.TOPIC))
        yield _described(name, synonyms, ConfigType.LONG, setting.documentation, read_only=False)
    synonyms = [(MIN_INSYNC_REPLICAS, str(default_minimum(topic.fewest_replicas)), ConfigSource.DEFAULT)]
    if MIN_INSYNC_REPLICAS in topic.settings:
        own = topic.settings[MIN_INSYNC_REPLICAS]
        synonyms.insert(0, (MIN_INSYNC_REPLICAS, own, ConfigSource.TOPIC))
    words = "Messages are committed, and shown, while so many replicas are in sync."
    yield _described(MIN_INSYNC_REPLICAS, synonyms, ConfigType.INT, words, read_only=False)
    for name, value in FIXED.items():
        synonyms = [(name, value, ConfigSource.DEFAULT)]
        yield _described(name, synonyms, ConfigType.STRING, "There is no other value.")
    origins = ",".join(
        f"{number}={state.origin.cluster}/{state.origin.topic}-{state.origin.partition}"
        for number, state in topic.partitions.items()
        if state.origin is not None
    )
    if origins:
        words = "Which partition of which cluster each partition is a copy of."
        yield _described(ORIGINS, [(ORIGINS, origins, ConfigSource.TOPIC)], ConfigType.LIST, words)


def describe_broker(config: Any, prefix: str = "") -> Iterator[DescribedConfig]:
    """Every setting of the broker's file, those of its sections by SECTION.NAME."""
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from describe_broker(value, f"{name}.")
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from describe_broker(entry, f"{name}.{key}.")
        else:
            text, type_ = _text(value)
            source = ConfigSource.DEFAULT if value == field.default else ConfigSource.STATIC_BROKER
            yield _described(name, [(name, text, source)], type_)


def _text(value: Any) -> tuple[str, ConfigType]:
    match value:
        case bool():
            return str(value).lower(), ConfigType.BOOLEAN
        case None:
            return "-1", ConfigType.LONG
        case int():
            return str(value), ConfigType.LONG
        case str():
            return value, ConfigType.STRING
    return ",".join(str(item) for item in value), ConfigType.LIST


def _described(
    name: str,
    synonyms: list[tuple[str, str, ConfigSource]],
    type_: ConfigType,
    documentation: str | None = None,
    *,
    read_only: bool = True,
) -> DescribedConfig:
    _, value, source = synonyms[0]
    return DescribedConfig(
        name=name,
        value=value,
        read_only=read_only,
        config_source=source,
        synonyms=tuple(DescribedConfig.Synonym(name=n, value=v, source=s) for n, v, s in synonyms),
        config_type=type_,
        documentation=documentation,
    )
