"""The options of the data source: topics, start and end, limits, and the format of the messages.

Names and meaning follow Spark's own Kafka source where it has the option. An unknown option is refused:
otherwise a misspelt limit or start would be ignored silently. Only parses the options, and asks no broker.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.config import ClientSecurity, parse_addresses
from millrace.errors import ConfigError, MillraceError
from millrace.security.client import load_client, of_process
from millrace.topics_file import FORMATS, NO_POLICY, policies_of_environment
from millrace_warehouse.log.formats import AVRO, PLAIN_SCHEMAS

NAMES = (
    "bootstrap",
    "kafka.bootstrap.servers",
    "client.file",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "mode",
    "value.format",
    "registry.url",
    "registry.subject",
    "registry.schema.id",
)

HINTS = {
    "includeheaders": "headers are always a column; leave it out",
    "kafka.group.id": "this source uses no consumer group; leave it out",
    "groupidprefix": "this source uses no consumer group; leave it out",
    "minoffsetspertrigger": "set a longer trigger interval",
    "maxtriggerdelay": "set a longer trigger interval",
    "maxrecordsperpartition": "give minPartitions",
    "columnnameofcorruptrecord": "the column is always named _corrupt_record",
    "format": "give value.format for the format of the messages",
    "avroschema": "give registry.url: columns follow the newest schema there, or registry.schema.id",
}
"""Advice on options of Spark's own sources that this source does not have."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics to read: names, a pattern, or certain partitions of some topics."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Start or end: an offset, EARLIEST or LATEST."""

    value: int | Mapping[str, Mapping[int, int]]
    """One value for all partitions, or topic -> partition -> value."""
    by_time: bool = False
    """True if the values are times in ms. A time means the first record at or after it."""
    option: str = ""
    """Name of the option, for messages."""

    @property
    def offsets(self) -> set[int]:
        """Every named offset; empty for times."""
        if self.by_time:
            return set()
        if isinstance(self.value, int):
            return {self.value}
        return {offset for offsets in self.value.values() for offset in offsets.values()}

    def of_topic(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Map each partition to its value.

        Raise MillraceError unless exactly these partitions are named.
        """
        if isinstance(self.value, int):
            return dict.fromkeys(partitions, self.value)
        values = self.value.get(topic, {})
        if missing := set(partitions) - set(values):
            raise MillraceError(
                f"option {self.option!r} names no partition {min(missing)} of topic {topic!r}; name them all"
            )
        if strange := set(values) - set(partitions):
            raise MillraceError(f"topic {topic!r} has no partition {min(strange)}, named by {self.option!r}")
        return dict(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Parsed options; None for options that are not given."""

    bootstrap: str
    subscription: Subscription
    security: ClientSecurity = field(default_factory=ClientSecurity)
    """Paths of client files and certificates on every worker. Their contents are never sent."""
    starting: Position | None = None
    ending: Position | None = None
    latest_if_no_record: bool = False
    """Begin at the end, instead of refusing, if no record is at or after the requested time."""
    min_partitions: int = 1
    max_offsets: int | None = None
    max_bytes: int | None = None
    fail_on_data_loss: bool = True
    permissive: bool = False
    value_format: str = ""
    """Format from which messages are decoded, one of FORMATS; empty for raw columns."""
    registry_url: str | None = field(default=None, repr=False)
    registry_subject: str | None = None
    """Subject whose newest schema the columns follow; the topic's name by default."""
    registry_schema_id: int | None = None
    """Schema that the columns follow, instead of a subject's newest."""

    @property
    def topic(self) -> str:
        """The only topic of a query that decodes."""
        return self.subscription.topics[0]


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.read` or `spark.readStream`, in upper or lower case.

    Raise ConfigError, naming the option, for a wrong option.
    """
    given = _properly_named(options)
    if not given.get("bootstrap", "").strip():
        raise ConfigError("option 'kafka.bootstrap.servers' (or 'bootstrap') is missing")
    parse_addresses(given["bootstrap"])
    subscription = _subscription(given)
    if "maxOffsetsPerTrigger" in given and "maxBytesPerTrigger" in given:
        raise ConfigError("give one of 'maxOffsetsPerTrigger' and 'maxBytesPerTrigger'")
    return SourceOptions(
        bootstrap=given["bootstrap"],
        subscription=subscription,
        security=load_client(given["client.file"]) if "client.file" in given else of_process(),
        starting=_position("starting", given, subscription),
        ending=_position("ending", given, subscription),
        latest_if_no_record=_one_of(given, "startingOffsetsByTimestampStrategy", "error", "latest"),
        min_partitions=_number(given, "minPartitions") or 1,
        max_offsets=_number(given, "maxOffsetsPerTrigger"),
        max_bytes=_number(given, "maxBytesPerTrigger"),
        fail_on_data_loss=not _one_of(given, "failOnDataLoss", "true", "false"),
        permissive=_one_of(given, "mode", "failfast", "permissive"),
        value_format=_value_format(given, subscription),
        registry_url=given.get("registry.url"),
        registry_subject=given.get("registry.subject"),
        registry_schema_id=_number(given, "registry.schema.id"),
    )


def check_batch(options: SourceOptions) -> None:
    """Refuse options that only a stream may have."""
    if options.max_offsets or options.max_bytes:
        raise ConfigError("'maxOffsetsPerTrigger' and 'maxBytesPerTrigger' are for spark.readStream")
    if options.starting is not None and LATEST in options.starting.offsets:
        raise ConfigError(
            f"option {options.starting.option!r} cannot be the latest offset in spark.read: nothing would be"
            " read"
        )


def check_stream(options: SourceOptions) -> None:
    """Refuse options that only a batch may have."""
    if options.ending is not None:
        raise ConfigError(f"option {options.ending.option!r} is for spark.read: a stream has no end")


def _properly_named(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    names = {name.lower(): name for name in NAMES}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            raise ConfigError(f"unknown option {key!r}; {_hint(key.lower(), names)}")
        name = "bootstrap" if name == "kafka.bootstrap.servers" else name
        if given.setdefault(name, value) != value:
            raise ConfigError("options 'bootstrap' and 'kafka.bootstrap.servers' differ; give one of them")
    return given


def _hint(key: str, names: Mapping[str, str]) -> str:
    if key in HINTS:
        return HINTS[key]
    if key.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")):
        return "plans show options: write a client file (docs/security.md) and name it as 'client.file'"
    if close := difflib.get_close_matches(key, names, n=1, cutoff=0.75):
        return f"did you mean {names[close[0]]!r}?"
    if key.startswith("kafka."):
        return "of the kafka.* options only kafka.bootstrap.servers means something to this source"
    return f"known: {', '.join(NAMES)}"


def _subscription(given: Mapping[str, str]) -> Subscription:
    options = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name, "").strip()]
    if len(options) != 1:
        exclusive = f"{' and '.join(map(repr, options))} exclude each other"
        what = exclusive if options else "'subscribe' is missing"
        raise ConfigError(f"option {what}: give one of 'subscribe', 'subscribePattern' and 'assign'")
    (option,) = options
    text = given[option].strip()
    if option == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise ConfigError("option 'subscribe' names no topic: give names with commas between them")
        return Subscription(topics)
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option 'subscribePattern' is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    try:
        named = json.loads(text).items()
        partitions = {str(topic): tuple(map(_natural, numbers)) for topic, numbers in named}
        if not partitions or not all(partitions.values()):
            raise ValueError(text)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"option 'assign' is not JSON like {{\"topic\": [0, 1]}}: {text!r}") from None
    return Subscription(tuple(partitions), partitions=partitions)


def _value_format(given: Mapping[str, str], subscription: Subscription) -> str:
    """Return the given format, else the one of the topic's policy or Avro; empty if nothing is decoded."""
    if "value.format" not in given and "registry.url" not in given:
        for name in ("registry.subject", "registry.schema.id", "mode"):
            if name in given:
                raise ConfigError(
                    f"option {name!r} needs 'registry.url' or 'value.format': without them nothing is decoded"
                )
        return ""
    if len(subscription.topics) != 1:
        raise ConfigError("with 'registry.url' or 'value.format' give one topic, whose columns are decoded")
    value_format = given.get("value.format", "").strip().lower()
    if not value_format:
        value_format = policies_of_environment().get(subscription.topics[0], NO_POLICY).format or AVRO
    if value_format not in FORMATS:
        raise ConfigError(f"option 'value.format' is none of {', '.join(FORMATS)}: {value_format!r}")
    _check_registry(given, value_format)
    return value_format


def _check_registry(given: Mapping[str, str], value_format: str) -> None:
    registry = [name for name in given if name.startswith("registry.")]
    if value_format in PLAIN_SCHEMAS and registry:
        raise ConfigError(
            f"option {registry[0]!r} is of no use for {value_format}, which has no schema: leave it out, and"
            f" give value.format={value_format}"
        )
    if value_format not in PLAIN_SCHEMAS and "registry.url" not in given:
        raise ConfigError(
            f"option 'value.format' {value_format!r} needs 'registry.url': the columns are those of a schema"
            " there"
        )
    if "registry.subject" in given and "registry.schema.id" in given:
        raise ConfigError("give either 'registry.subject' or 'registry.schema.id'")


def _position(side: str, given: Mapping[str, str], subscription: Subscription) -> Position | None:
    """Return a position. As in Spark, one timestamp overrides times, and times override offsets."""
    time = _number(given, f"{side}Timestamp", smallest=0, what="a time in milliseconds since 1970")
    if time is not None:
        return Position(time, by_time=True, option=f"{side}Timestamp")
    if (option := f"{side}OffsetsByTimestamp") in given:
        times = _by_partition(option, given[option], subscription, smallest=0)
        return Position(times, by_time=True, option=option)
    option = f"{side}Offsets"
    text = given.get(option)
    if text is None:
        return None
    words = {"earliest": EARLIEST, "latest": LATEST} if side == "starting" else {"latest": LATEST}
    if text.strip().lower() in words:
        return Position(words[text.strip().lower()], option=option)
    offsets = _by_partition(option, text, subscription, smallest=EARLIEST, words=" or ".join(words))
    return Position(offsets, option=option)


def _by_partition(
    option: str, text: str, subscription: Subscription, *, smallest: int, words: str = ""
) -> dict[str, dict[int, int]]:
    try:
        topics = {
            topic: {_natural(int(p)): _at_least(smallest, value) for p, value in partitions.items()}
            for topic, partitions in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError):
        needed = f"neither {words} nor JSON" if words else "not JSON"
        raise ConfigError(f'option {option!r} is {needed} like {{"topic": {{"0": 23}}}}: {text!r}') from None
    if subscription.topics and (strange := set(topics) ^ set(subscription.topics)):
        raise ConfigError(f"option {option!r} and the topics asked for differ in {min(strange)!r}")
    if option == "endingOffsets" and any(EARLIEST in partitions.values() for partitions in topics.values()):
        raise ConfigError(f"option {option!r} cannot hold {EARLIEST}")
    return topics


def _at_least(smallest: int, value: Any) -> int:
    if type(value) is not int or value < smallest:
        raise ValueError(value)
    return value


def _natural(value: Any) -> int:
    return _at_least(0, value)


def _number(
    given: Mapping[str, str], option: str, *, smallest: int = 1, what: str = "a positive number"
) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < smallest:
        raise ConfigError(f"option {option!r} is not {what}: {text!r}")
    return int(text)


def _one_of(given: Mapping[str, str], option: str, default: str, other: str) -> bool:
    text = given.get(option, default).strip().lower()
    if text not in (default, other):
        raise ConfigError(f"option {option!r} is neither {default} nor {other}: {given[option]!r}")
    return text == other
