"""What topics and the broker itself are set to, as clients are told.

A topic's setting is its own (and may change at run time), else what the broker's file says, else the
product's default. The broker's settings are those of its file, under the names they have there; they and what
Millrace does in any case are read-only. Pure: values in, values out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.broker.topic_settings import FIXED, SETTINGS
from millrace.config import BrokerConfig, LogConfig
from millrace.coordination.state import TopicState
from millrace.wire.admin_messages import ORIGINS, ConfigSource, ConfigType


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting; `places` are (name, value, source) of each that has a say, the one that counts first."""

    name: str
    places: tuple[tuple[str, str, ConfigSource], ...]
    read_only: bool
    type: ConfigType
    documentation: str | None = None

    @property
    def value(self) -> str:
        """What holds."""
        return self.places[0][1]

    @property
    def source(self) -> ConfigSource:
        """Where that comes from."""
        return self.places[0][2]


def topic_settings(broker: LogConfig, topic: TopicState) -> Iterator[Setting]:
    """Every setting of a topic."""
    product = LogConfig()
    for name, setting in SETTINGS.items():
        default, ours = setting.text(product), setting.text(broker)
        places = [(name, default, ConfigSource.DEFAULT)]
        if ours != default:
            places.insert(0, (f"log.{setting.field}", ours, ConfigSource.STATIC_BROKER))
        if name in topic.settings:
            places.insert(0, (name, topic.settings[name], ConfigSource.TOPIC))
        yield Setting(
            name=name, places=tuple(places), read_only=False, type=ConfigType.LONG,
            documentation=setting.documentation,
        )  # fmt: skip
    for name, value in FIXED.items():
        yield _read_only(name, value, ConfigType.STRING, ConfigSource.DEFAULT, "There is no other value.")
    origins = ",".join(
        f"{number}={state.origin.cluster}/{state.origin.topic}-{state.origin.partition}"
        for number, state in topic.partitions.items()
        if state.origin is not None
    )
    if origins:
        documentation = "Which partition of which cluster each partition is a copy of."
        yield _read_only(ORIGINS, origins, ConfigType.LIST, ConfigSource.TOPIC, documentation)


def broker_settings(config: BrokerConfig) -> Iterator[Setting]:
    """Every setting of the broker's file."""
    yield from _file_settings("", config)


def _file_settings(prefix: str, config: Any) -> Iterator[Setting]:
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _file_settings(f"{name}.", value)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from _file_settings(f"{name}.{key}.", entry)
        else:
            source = ConfigSource.DEFAULT if value == field.default else ConfigSource.STATIC_BROKER
            yield _read_only(name, *_text(value), source)


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


def _read_only(
    name: str, value: str, type_: ConfigType, source: ConfigSource, documentation: str | None = None
) -> Setting:
    return Setting(
        name=name, places=((name, value, source),), read_only=True, type=type_, documentation=documentation
    )
