"""The options of the data source: which topics, from where to where, decoded or raw.

Names and meaning follow Spark's own Kafka source where it has the option. An unknown one is refused.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.config import parse_addresses
from millrace.errors import ConfigError, MillraceError
from millrace.wire.client import EARLIEST, LATEST
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_spark.ranges import Cut, Range, cut_ranges, size_of
from millrace_spark.reading import TopicMetadata

CUT_BYTES = 128 << 20
"""The most one task reads unless `minPartitions` asks for smaller ones (on Apache Kafka: about)."""

KNOWN = {
    "bootstrap": "bootstrap",
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "subscribe",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "minpartitions": "minPartitions",
    "failondataloss": "failOnDataLoss",
    "registry.url": "registry.url",
    "registry.subject": "registry.subject",
}

PartitionOffsets = Mapping[int, int]
Offsets = Mapping[str, PartitionOffsets]
"""Topic -> partition -> offset, or EARLIEST or LATEST."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What was asked for; offsets are EARLIEST, LATEST or given for every partition."""

    bootstrap: str
    topics: tuple[str, ...]
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    registry_url: str | None = None
    registry_subject: str | None = None
    """Whose latest schema the columns follow; the topic's name by default."""


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read`, in any case; ConfigError names the one that is wrong or missing."""
    given: dict[str, str] = {}
    for key, value in options.items():
        name = KNOWN.get(key.lower())
        if name is None:
            close = difflib.get_close_matches(key.lower(), KNOWN, n=1)
            hint = (
                f"did you mean {KNOWN[close[0]]!r}?"
                if close
                else f"known: {', '.join(sorted(KNOWN.values()))}"
            )
            raise ConfigError(f"unknown option {key!r}; {hint}")
        if given.setdefault(name, value) != value:
            raise ConfigError("options 'bootstrap' and 'kafka.bootstrap.servers' differ; give one of them")
    for needed in ("bootstrap", "subscribe"):
        if not given.get(needed, "").strip():
            raise ConfigError(f"option {needed!r} is missing")
    parse_addresses(given["bootstrap"])
    topics = tuple(dict.fromkeys(topic.strip() for topic in given["subscribe"].split(",") if topic.strip()))
    registry = given.get("registry.url")
    if registry is not None and len(topics) > 1:
        raise ConfigError("with 'registry.url' give one topic in 'subscribe': its schema names the columns")
    return SourceOptions(
        bootstrap=given["bootstrap"],
        topics=topics,
        starting=_offsets("startingOffsets", given.get("startingOffsets", "earliest"), topics),
        ending=_offsets("endingOffsets", given.get("endingOffsets", "latest"), topics),
        min_partitions=_positive("minPartitions", given.get("minPartitions", "1")),
        fail_on_data_loss=_boolean("failOnDataLoss", given.get("failOnDataLoss", "true")),
        registry_url=registry,
        registry_subject=given.get("registry.subject"),
    )


def _offsets(option: str, text: str, topics: Iterable[str]) -> int | Offsets:
    starting = option == "startingOffsets"
    if text.strip().lower() == ("earliest" if starting else "latest"):
        return EARLIEST if starting else LATEST
    try:
        parsed = json.loads(text)
        offsets = {topic: {int(p): _offset(at) for p, at in each.items()} for topic, each in parsed.items()}
    except (AttributeError, TypeError, ValueError):
        word = "earliest" if starting else "latest"
        example = '{"topic": {"0": 23, "1": -2}}' if starting else '{"topic": {"0": 50, "1": -1}}'
        raise ConfigError(
            f"option {option!r} is neither {word!r} nor JSON like {example}: {text!r}"
        ) from None
    if strange := set(offsets) ^ set(topics):
        raise ConfigError(f"option {option!r} and 'subscribe' differ in topic {min(strange)!r}")
    refused = LATEST if starting else EARLIEST
    if any(at == refused for each in offsets.values() for at in each.values()):
        raise ConfigError(f"option {option!r} cannot hold {refused}")
    return offsets


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(value)
    return value


def _positive(option: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"option {option!r} is not a positive number: {text!r}")
    return int(text)


def _boolean(option: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {option!r} is neither true nor false: {text!r}")
    return text.strip().lower() == "true"


class OffsetsClient(Protocol):
    """What freezing offsets needs of `wire.client.ClusterClient`."""

    @property
    def cluster_id(self) -> str:
        """The cluster's own random id, which tells Millrace from Apache Kafka."""

    def topic(self, name: str) -> TopicWithPartitions:
        """The topic's metadata."""

    def list_offsets(self, topic: str, timestamp: int) -> Mapping[int, int]:
        """Partition -> offset."""


class TopicWithPartitions(TopicMetadata, Protocol):
    """A topic and its partitions."""

    @property
    def partitions(self) -> Mapping[int, int]:
        """Partition -> leader."""


def freeze(client: OffsetsClient, options: SourceOptions) -> list[Range]:
    """The ranges asked for, as numbers that will not change; MillraceError when they cannot be read."""
    ranges: list[Range] = []
    for name in options.topics:
        topic = client.topic(name)
        earliest, latest = client.list_offsets(name, EARLIEST), client.list_offsets(name, LATEST)
        for partition in sorted(topic.partitions):
            known = {EARLIEST: earliest[partition], LATEST: latest[partition]}
            start = _resolved(options.starting, name, partition, known)
            end = _resolved(options.ending, name, partition, known)
            start = _checked_start(f"{name}-{partition}", start, known, options.fail_on_data_loss)
            if end > latest[partition]:
                raise MillraceError(
                    f"{name}-{partition} ends at {latest[partition]}, before endingOffsets {end}"
                )
            if start < end:
                ranges.append(
                    Range(
                        name, partition, start, end, topic_id=topic.topic_id,
                        byte_positions=client.cluster_id.startswith(BYTE_OFFSETS_PREFIX),
                    )
                )  # fmt: skip
        _check_named(options, name, topic.partitions)
    return ranges


def _resolved(asked: int | Offsets, topic: str, partition: int, known: Mapping[int, int]) -> int:
    if not isinstance(asked, int):
        if partition not in asked[topic]:
            raise MillraceError(
                f"the offsets name no partition {partition} of topic {topic!r}; name all of them"
            )
        asked = asked[topic][partition]
    return known.get(asked, asked)


def _checked_start(name: str, start: int, known: Mapping[int, int], fail: bool) -> int:
    if start >= known[EARLIEST]:
        return start
    if fail:
        raise MillraceError(
            f"{name} begins at {known[EARLIEST]}, offset {start} has expired; start later, "
            "or set failOnDataLoss=false"
        )
    return known[EARLIEST]


def _check_named(options: SourceOptions, topic: str, partitions: Mapping[int, int]) -> None:
    for asked in (options.starting, options.ending):
        if not isinstance(asked, int) and (strange := asked[topic].keys() - partitions.keys()):
            raise MillraceError(f"topic {topic!r} has no partition {min(strange)}")


def cuts_for(ranges: list[Range], min_partitions: int) -> list[Cut]:
    """The ranges as tasks: at least `min_partitions` of them if there are offsets for that many."""
    total = sum(map(size_of, ranges))
    return cut_ranges(ranges, max(1, min(CUT_BYTES, total // min_partitions)))
