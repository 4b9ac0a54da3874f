"""The registry's subject of a topic's schemas: by one strategy for a deployment, or by another for a topic.

A deployment sets its strategies once: in its file of topics, and as values of `--subject` or of the variable
MILLRACE_SUBJECTS. All code that registers, loads, promotes, reads or plans uses this module. It reads no
messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from millrace.errors import ConfigError, MillraceError
from millrace.topics_file import NO_POLICY, TopicPolicies, policies_of_environment

if TYPE_CHECKING:
    from millrace_registry.client import SchemaRegistryClient

ENVIRONMENT = "MILLRACE_SUBJECTS"
"""Environment variable with values as for `--subject`, separated by spaces."""
OPTION_HELP = (
    "Name of a topic's subject: topic, topic-value or record for all topics, TOPIC=SUBJECT or"
    " TOPIC=STRATEGY for one. Repeatable.  [default: topic]"
)


class Strategy(StrEnum):
    """Strategies to name subjects; the last two are Confluent's TopicNameStrategy and RecordNameStrategy."""

    TOPIC = "topic"
    """The topic's name."""
    TOPIC_VALUE = "topic-value"
    """The topic's name with `-value` at its end: the default of Confluent's serializers."""
    RECORD = "record"
    """The record's name with its namespace."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subject of every topic."""

    strategy: Strategy = Strategy.TOPIC
    by_topic: Mapping[str, str] = field(default_factory=dict)
    """Topic -> its own strategy, or the name of its subject."""
    policies: TopicPolicies = field(default_factory=dict)
    """Policies of topics that are not in `by_topic`."""

    @classmethod
    def parse(cls, words: Iterable[str], policies: TopicPolicies | None = None) -> Subjects:
        """Read `STRATEGY`, `TOPIC=STRATEGY` and `TOPIC=SUBJECT`. Raise ConfigError for anything else.

        A word has precedence over the topic's policy.
        """
        strategy = Strategy.TOPIC
        by_topic = dict[str, str]()
        for word in words:
            topic, equals, named = word.partition("=")
            if equals and topic and named:
                by_topic[topic] = named
            elif not equals and word in tuple(Strategy):
                strategy = Strategy(word)
            else:
                raise ConfigError(
                    f"subject {word!r} is not understood: write {', '.join(Strategy)}, or TOPIC=SUBJECT"
                )
        return cls(strategy, by_topic, policies or {})

    @classmethod
    def of_environment(cls, words: Sequence[str] = ()) -> Subjects:
        """Return the subjects by `words` (without them, by MILLRACE_SUBJECTS) and by the file of topics."""
        return cls.parse(words or os.environ.get(ENVIRONMENT, "").split(), policies_of_environment())

    def of(self, topic: str, record: str | None = None) -> str:
        """Return the subject of a topic's events; `record` is the full name of their schema, if it is known.

        Raise ConfigError when the strategy is RECORD and the record's name is not known.
        """
        named = self._named(topic)
        match named:
            case Strategy.TOPIC:
                return topic
            case Strategy.TOPIC_VALUE:
                return f"{topic}-value"
            case Strategy.RECORD:
                if record is None:
                    raise ConfigError(
                        f"the subject of {topic} is named like its record, whose name is not known here:"
                        f" give --subject {topic}=SUBJECT"
                    )
                return record
        return named

    def _named(self, topic: str) -> str:
        """Return the strategy of a topic, or the name of its subject."""
        return self.by_topic.get(topic) or self.policies.get(topic, NO_POLICY).subject or self.strategy

    def of_messages(
        self, topic: str, ids_in: Callable[[], Iterable[int]], registry: SchemaRegistryClient
    ) -> str:
        """Return the subject of a topic. If the strategy is RECORD, the ids in the messages determine the
        record.

        Raise MillraceError when the ids are of several records.
        """
        if self._named(topic) != Strategy.RECORD:
            return self.of(topic)
        records = {full_name(schema) for id_ in ids_in() if (schema := registry.find_schema(id_)) is not None}
        if len(records) > 1:
            raise MillraceError(
                f"the messages of {topic} are of several records, {', '.join(sorted(map(str, records)))}:"
                f" choose one with --subject {topic}=SUBJECT"
            )
        return self.of(topic, records.pop() if records else None)


LIKE_TOPICS = Subjects()
"""The default: every subject is named like its topic."""


def full_name(schema: object) -> str | None:
    """Return the name of a parsed schema with its namespace; None for one without a name."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str):
        return None
    name, namespace = str(schema["name"]), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def foreign_ids(
    topic: str, ids: Iterable[int], subjects: Subjects, registry: SchemaRegistryClient
) -> dict[int, Sequence[str]]:
    """Return the ids in a topic's messages that its subject has never had, each with the subjects that hold
    it.

    An id that the registry does not know is left out: its messages cannot be read anyway.
    """
    others: dict[int, Sequence[str]] = {}
    for schema_id in sorted(set(ids)):
        schema = registry.find_schema(schema_id)
        if schema is not None and (holders := registry.subjects_of(schema_id)):
            name = full_name(schema)
            if name is None or subjects.of(topic, name) not in holders:
                others[schema_id] = holders
    return others


def foreign_id_lines(topic: str, others: Mapping[int, Sequence[str]]) -> list[str]:
    """Return a line for each id of `foreign_ids`, with the action to take."""
    return [
        f"{topic}: its messages have schema id {schema_id} of subject {' and '.join(holders)}, which is not"
        f" the topic's subject, so its changes are not checked for {topic}: give --subject"
        f" {topic}={holders[0]}, or let its producers register under the deployment's subject"
        for schema_id, holders in others.items()
    ]
