"""Settings of topics and of the broker by Kafka's names: their allowed values, present values and sources.

A topic's setting is its own (and may change at run time), else that of the broker's file, else the product's
default. Some have one value, because Millrace always behaves so. Some are accepted without effect, because
the thing that they limit does not exist here. The broker's settings are read-only: those that tools look for
by Kafka's names, and those of its file under the names they have there. Pure: values in, values out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.config import BrokerConfig, ListenerConfig, LogConfig, documentation_of
from millrace.errors import BrokerError, ErrorCode
from millrace.wire.admin_messages import ORIGINS, ConfigSource, ConfigType, DescribedConfig
from millrace.zookeeper.topic_state import MIN_INSYNC_REPLICAS, BrokerAddress, TopicState, default_minimum

_INT64_MAX = (1 << 63) - 1
_FORMS = {
    ConfigType.BOOLEAN: "true|false",
    ConfigType.LONG: "-?[0-9]{1,19}",
    ConfigType.DOUBLE: "[0-9]{1,9}([.][0-9]{1,9})?",
}


class InvalidTopicConfig(BrokerError, code=ErrorCode.INVALID_CONFIG):
    """A topic setting is unknown or has an invalid value."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A number that a topic may set for itself: its field of LogConfig, and its allowed values."""

    field: str
    broker_name: str
    """Kafka's name of the broker's own setting, which counts where a topic has none."""
    smallest: int
    unlimited: bool = False
    """True when -1 sets no limit."""
    bound: str | None = None
    """The broker's own setting that no topic may exceed."""

    @property
    def documentation(self) -> str:
        return documentation_of(LogConfig)[self.field]

    def largest(self, broker: BrokerConfig) -> int:
        return _INT64_MAX if self.bound is None else int(getattr(broker, self.bound))

    def text(self, config: LogConfig) -> str:
        return _text(getattr(config, self.field))[0]


@dataclass(frozen=True, slots=True)
class OnlyValue:
    """A setting with a single allowed value; `reason` states why the broker supports no other value."""

    value: str
    broker_name: str
    reason: str

    @property
    def documentation(self) -> str:
        return f"There is no other value: {self.reason}."


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A setting that takes any value of its type, because the thing it is about does not exist here."""

    type: ConfigType
    reason: str
    values: Sequence[str] = ()
    """Values that it may have; empty: any of its type."""
    default: str | None = None
    """Value that DescribeConfigs reports as the default; None if there is none."""

    @property
    def documentation(self) -> str:
        return f"Without effect: {self.reason}."

    def takes(self, text: str) -> bool:
        return text in self.values if self.values else re.fullmatch(_FORMS[self.type], text) is not None


# docs/architecture.md, "How to add", lists what else a new setting changes.
SETTINGS: Mapping[str, TopicSetting] = {
    "segment.bytes": TopicSetting("segment_bytes", "log.segment.bytes", 1024),
    "segment.ms": TopicSetting("segment_ms", "log.roll.ms", 1, unlimited=True),
    "flush.messages": TopicSetting("flush_messages", "log.flush.interval.messages", 1),
    "flush.ms": TopicSetting("flush_ms", "log.flush.interval.ms", 0),
    "retention.ms": TopicSetting("retention_ms", "log.retention.ms", 0, unlimited=True),
    "retention.bytes": TopicSetting("retention_bytes", "log.retention.bytes", 0, unlimited=True),
    "max.message.bytes": TopicSetting("max_message_bytes", "message.max.bytes", 1, bound="max_frame_bytes"),
}

_ANY_TIME = "a batch may have any times"
_NOT_COMPACTED = "nothing is compacted"
_NOT_COMPRESSED = "the broker compresses nothing"
_NOT_REMOTE = "a log is on its broker's disk alone"
_NOT_THROTTLED = "each broker's file limits what it copies, by replica_catch_up_bytes_per_second"
_OWN_INDEX = "where a reader begins is found by landmarks of another kind"

FIXED: Mapping[str, OnlyValue] = {
    "cleanup.policy": OnlyValue(
        "delete", "log.cleanup.policy", "records go by age and size, and none is compacted"
    ),
    "message.timestamp.type": OnlyValue(
        "CreateTime", "log.message.timestamp.type", "a batch keeps the times that its producer gave it"
    ),
    "message.timestamp.before.max.ms": OnlyValue(
        str(_INT64_MAX), "log.message.timestamp.before.max.ms", _ANY_TIME
    ),
    "message.timestamp.after.max.ms": OnlyValue(
        str(_INT64_MAX), "log.message.timestamp.after.max.ms", _ANY_TIME
    ),
    "unclean.leader.election.enable": OnlyValue(
        "false", "unclean.leader.election.enable", "no replica leads that lacks what is committed"
    ),
    "remote.storage.enable": OnlyValue("false", "remote.log.storage.system.enable", _NOT_REMOTE),
    "leader.replication.throttled.replicas": OnlyValue("", "", _NOT_THROTTLED),
    "follower.replication.throttled.replicas": OnlyValue("", "", _NOT_THROTTLED),
}
"""Settings with one value, as Millrace always behaves so; clients may set that value, but no other."""

WITHOUT_EFFECT: Mapping[str, WithoutEffect] = {
    "compression.type": WithoutEffect(
        ConfigType.STRING,
        "batches are stored as they were sent",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
    ),
    "compression.gzip.level": WithoutEffect(ConfigType.LONG, _NOT_COMPRESSED),
    "compression.lz4.level": WithoutEffect(ConfigType.LONG, _NOT_COMPRESSED),
    "compression.zstd.level": WithoutEffect(ConfigType.LONG, _NOT_COMPRESSED),
    "delete.retention.ms": WithoutEffect(ConfigType.LONG, _NOT_COMPACTED),
    "min.cleanable.dirty.ratio": WithoutEffect(ConfigType.DOUBLE, _NOT_COMPACTED),
    "min.compaction.lag.ms": WithoutEffect(ConfigType.LONG, _NOT_COMPACTED),
    "max.compaction.lag.ms": WithoutEffect(ConfigType.LONG, _NOT_COMPACTED),
    "file.delete.delay.ms": WithoutEffect(
        ConfigType.LONG, "a file is deleted at once, and its readers read on"
    ),
    "index.interval.bytes": WithoutEffect(ConfigType.LONG, _OWN_INDEX),
    "segment.index.bytes": WithoutEffect(ConfigType.LONG, _OWN_INDEX),
    "segment.jitter.ms": WithoutEffect(ConfigType.LONG, "new files of many partitions cost little"),
    "preallocate": WithoutEffect(ConfigType.BOOLEAN, "a file grows as it is written"),
    "local.retention.ms": WithoutEffect(ConfigType.LONG, _NOT_REMOTE),
    "local.retention.bytes": WithoutEffect(ConfigType.LONG, _NOT_REMOTE),
    "remote.log.copy.disable": WithoutEffect(ConfigType.BOOLEAN, _NOT_REMOTE),
    "remote.log.delete.on.disable": WithoutEffect(ConfigType.BOOLEAN, _NOT_REMOTE),
}
"""Hints to parts that do not exist here: accepted, and described where a topic made for Kafka has them."""

BROKER_SETTINGS: Mapping[str, str] = {
    "broker.id": "broker_id",
    "node.id": "broker_id",
    "log.dirs": "log_dir",
    "broker.rack": "rack",
    "num.partitions": "default_partitions",
    "default.replication.factor": "default_replicas",
    "auto.create.topics.enable": "auto_create_topics",
    **{setting.broker_name: f"log.{setting.field}" for setting in SETTINGS.values()},
    "max.connections": "max_connections",
    "max.connections.per.ip": "max_connections_per_address",
    "connections.max.idle.ms": "max_idle_ms",
    "socket.request.max.bytes": "max_frame_bytes",
    "group.min.session.timeout.ms": "group_min_session_timeout_ms",
    "group.max.session.timeout.ms": "group_max_session_timeout_ms",
    "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay_ms",
    "group.max.size": "group_max_size",
    "offsets.retention.minutes": "offsets_retention_minutes",
    "zookeeper.connect": "zookeeper",
    "zookeeper.session.timeout.ms": "session_timeout_ms",
}
"""Kafka's name of a broker's setting -> its key in the broker's file."""

_BROKER_ONLY = (
    OnlyValue("true", "delete.topic.enable", "a client with the right to delete a topic may always do so"),
    OnlyValue(
        "classic", "group.coordinator.rebalance.protocols", "the group protocol of Kafka 4 is not served"
    ),
)
BROKER_FIXED: Mapping[str, tuple[str, str]] = {
    **{
        one.broker_name: (one.value, one.documentation)
        for one in (*_BROKER_ONLY, *FIXED.values())
        if one.broker_name
    },
    **{name: (one.default, one.documentation) for name, one in WITHOUT_EFFECT.items() if one.default},
}
"""Fixed behaviour of a broker: the value and its documentation, by Kafka's names."""


LISTS = ("cleanup.policy",)
"""Settings of several values, separated by commas."""


def check_topic_settings(broker: BrokerConfig, settings: Mapping[str, str], replicas: int) -> None:
    """Refuse settings that a topic cannot have whose partitions have at least `replicas` replicas.

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
    """Return the configuration of a topic's logs: its settings over the broker's defaults.

    A value above what this broker allows counts as the largest that it allows: another broker or an older
    version has accepted it, and the topic must be served all the same. Raises InvalidTopicConfig.
    """
    changes = {
        SETTINGS[name].field: value if value is None else min(value, SETTINGS[name].largest(broker))
        for name, value in _values(settings).items()
    }
    return dataclasses.replace(broker.log, **changes)  # type: ignore[arg-type]  # names checked below


def is_setting(name: str) -> bool:
    """Return True for a setting that a topic may be given, with one allowed value or many."""
    return name in SETTINGS or name in FIXED or name in WITHOUT_EFFECT or name == MIN_INSYNC_REPLICAS


def _values(settings: Mapping[str, str]) -> Mapping[str, int | None]:
    """Return the settings that a topic's logs use, None for no limit; InvalidTopicConfig if invalid."""
    values: dict[str, int | None] = {}
    for name, text in settings.items():
        if (only := FIXED.get(name)) is not None:
            if text != only.value:
                raise InvalidTopicConfig(f"{name}={text}: only {only.value!r} is supported: {only.reason}")
        elif (idle := WITHOUT_EFFECT.get(name)) is not None:
            if not idle.takes(text):
                forms = " or ".join(idle.values) or f"a {idle.type.name.lower()}"
                raise InvalidTopicConfig(f"{name}={text!r} is not {forms}")
        elif name == MIN_INSYNC_REPLICAS:
            _value(name, 1, text)
        elif (setting := SETTINGS.get(name)) is not None:
            values[name] = _value(name, setting.smallest, text, unlimited=setting.unlimited)
        else:
            known = ", ".join((*SETTINGS, MIN_INSYNC_REPLICAS))
            raise InvalidTopicConfig(f"unknown topic setting {name!r}; known: {known}")
    return values


def _value(name: str, smallest: int, text: str, *, unlimited: bool = False) -> int | None:
    if not re.fullmatch(r"-?[0-9]{1,30}", text):
        raise InvalidTopicConfig(f"{name}={text!r} is not a number")
    value = int(text)
    if unlimited and value == -1:
        return None
    if value < smallest:
        raise InvalidTopicConfig(f"{name}={text}: at least {smallest}")
    return value


def describe_topic(broker: LogConfig, topic: TopicState) -> Iterator[DescribedConfig]:
    """Yield every setting of a topic. Its synonyms are all configured values, the effective value first.

    A setting without effect is described where the topic has it, or where it has a default.
    """
    product = LogConfig()
    for name, setting in SETTINGS.items():
        default, ours = setting.text(product), setting.text(broker)
        synonyms = [(setting.broker_name, default, ConfigSource.DEFAULT)]
        if ours != default:
            synonyms.insert(0, (setting.broker_name, ours, ConfigSource.STATIC_BROKER))
        synonyms = [*_own(topic, name), *synonyms]
        yield _described(name, synonyms, ConfigType.LONG, setting.documentation, read_only=False)
    least = str(default_minimum(topic.fewest_replicas))
    synonyms = [*_own(topic, MIN_INSYNC_REPLICAS), (MIN_INSYNC_REPLICAS, least, ConfigSource.DEFAULT)]
    words = "Messages are committed, and shown, while at least this many replicas are in sync."
    yield _described(MIN_INSYNC_REPLICAS, synonyms, ConfigType.INT, words, read_only=False)
    for name, only in FIXED.items():
        synonyms = [(only.broker_name or name, only.value, ConfigSource.DEFAULT)]
        yield _described(name, synonyms, ConfigType.STRING, only.documentation)
    for name, idle in WITHOUT_EFFECT.items():
        synonyms = _own(topic, name)
        if idle.default is not None:
            synonyms.append((name, idle.default, ConfigSource.DEFAULT))
        if synonyms:
            yield _described(name, synonyms, idle.type, idle.documentation, read_only=False)
    origins = ",".join(
        f"{number}={state.origin.cluster}/{state.origin.topic}-{state.origin.partition}"
        for number, state in topic.partitions.items()
        if state.origin is not None
    )
    if origins:
        words = "Which partition of which cluster each partition is a copy of."
        yield _described(ORIGINS, [(ORIGINS, origins, ConfigSource.TOPIC)], ConfigType.LIST, words)


def _own(topic: TopicState, name: str) -> list[tuple[str, str, ConfigSource]]:
    return [(name, topic.settings[name], ConfigSource.TOPIC)] if name in topic.settings else []


def describe_broker(config: BrokerConfig, address: BrokerAddress | None) -> Iterator[DescribedConfig]:
    """Yield every setting of a broker: by Kafka's names, with the key of its file as a synonym, then by those
    keys.

    `address` holds the broker's advertised addresses.
    """
    by_key = {one.name: one for one in _describe_file(config)}
    for name, key in BROKER_SETTINGS.items():
        own = by_key[key]
        source, value = ConfigSource(own.config_source), own.value or ""
        synonyms = [(name, value, source), (key, value, source)]
        yield _described(name, synonyms, ConfigType(own.config_type), own.documentation)
    for name, (value, text) in BROKER_FIXED.items():
        yield _described(name, [(name, value, ConfigSource.DEFAULT)], ConfigType.STRING, text)
    listeners, texts = config.named_listeners, documentation_of(ListenerConfig)
    found = {} if address is None else {name: address.at(name) for name in listeners}
    listened = [f"{name}://{one.listen}" for name, one in listeners.items()]
    advertised = [f"{name}://{at[0]}:{at[1]}" for name, at in found.items() if at]
    protocols = [f"{name}:{one.protocol}" for name, one in listeners.items()]
    for name, values, text in (
        ("listeners", listened, documentation_of(BrokerConfig)["listeners"]),
        ("advertised.listeners", advertised, texts["advertised"]),
        ("listener.security.protocol.map", protocols, texts["protocol"]),
    ):
        synonyms = [(name, ",".join(values), ConfigSource.STATIC_BROKER)]
        yield _described(name, synonyms, ConfigType.LIST, text)
    yield from by_key.values()


def _describe_file(config: Any, prefix: str = "") -> Iterator[DescribedConfig]:
    """Yield every setting of the broker's file. Settings in a section are named SECTION.NAME."""
    texts = documentation_of(type(config))
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _describe_file(value, f"{name}.")
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from _describe_file(entry, f"{name}.{key}.")
        else:
            text, type_ = _text(value)
            source = ConfigSource.DEFAULT if value == field.default else ConfigSource.STATIC_BROKER
            yield _described(name, [(name, text, source)], type_, texts[field.name])


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
    documentation: str | None,
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
