"""Which subject of the registry holds a topic's schemas: one strategy for a deployment, another for a topic.

A deployment says it once: in its file of topics, and as words of `--subject` or of the variable
MILLRACE_SUBJECTS. Whoever registers, loads, promotes, reads or plans asks here. Reads no messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from millrace.errors import ConfigError, MillraceError
from millrace.topics_file import TopicPolicies, policies_of_environment

if TYPE_CHECKING:
    from millrace_registry.client import SchemaRegistryClient

ENVIRONMENT = "MILLRACE_SUBJECTS"
"""The variable with the same words as `--subject`, parted by spaces."""
OPTION_HELP = (
    "How a topic's subject is named: topic, topic-value or record for all topics, TOPIC=SUBJECT or"
    " TOPIC=STRATEGY for one. Repeatable.  [default: topic]"
)


class Strategy(StrEnum):
    """How a subject is named; the last two are Confluent's TopicNameStrategy and RecordNameStrategy."""

    TOPIC = "topic"
    """Like the topic."""
    TOPIC_VALUE = "topic-value"
    """Like the topic, with `-value` behind it: the default of Confluent's serializers."""
    RECORD = "record"
    """Like the record, with its namespace."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subject of every topic."""

    strategy: Strategy = Strategy.TOPIC
    by_topic: Mapping[str, str] = field(default_factory=dict)
    """Topics that have another strategy, or a subject by its name."""

    @classmethod
    def parse(cls, words: Iterable[str], policies: TopicPolicies | None = None) -> Subjects:
        """Reads `STRATEGY`, `TOPIC=STRATEGY` and `TOPIC=SUBJECT`; ConfigError for anything else.

        A word outweighs the topic's policy.
        """
        strategy = Strategy.TOPIC
        by_topic = {topic: policy.subject for topic, policy in (policies or {}).items() if policy.subject}
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
        return cls(strategy, by_topic)

    @classmethod
    def of_environment(cls, words: Sequence[str] = ()) -> Subjects:
        """The subjects by the words, or by MILLRACE_SUBJECTS without any, and by the file of topics."""
        return cls.parse(words or os.environ.get(ENVIRONMENT, "").split(), policies_of_environment())

    def of(self, topic: str, record: str | None = None) -> str:
        """The subject of a topic's events; `record` is the full name of their schema, if it is known.

        Raises ConfigError when the record decides, and its name is not known.
        """
        named = self.by_topic.get(topic, self.strategy)
        match named:
            case Strategy.TOPIC:
                return topic
            case Strategy.TOPIC_VALUE:
                return f"{topic}-value"
            case Strategy.RECORD:
                if record is None:
                    raise ConfigError(
                        f"the subject of {topic} is named like its record, which nothing names here: give"
                        f" --subject {topic}=SUBJECT"
                    )
                return record
        return named

    def of_messages(
        self, topic: str, ids_in: Callable[[], Iterable[int]], registry: SchemaRegistryClient
    ) -> str:
        """The subject of a topic; the ids that its messages carry are read if the record decides.

        Raises MillraceError when they are of several records.
        """
        if self.by_topic.get(topic, self.strategy) != Strategy.RECORD:
            return self.of(topic)
        records = {full_name(schema) for id_ in ids_in() if (schema := registry.find_schema(id_)) is not None}
        if len(records) > 1:
            raise MillraceError(
                f"the messages of {topic} are of several records, {', '.join(sorted(map(str, records)))}:"
                f" say which one with --subject {topic}=SUBJECT"
            )
        return self.of(topic, records.pop() if records else None)


LIKE_TOPICS = Subjects()
"""Every subject is named like its topic: what holds where nothing else is said."""


def full_name(schema: object) -> str | None:
    """The name of a parsed schema with its namespace; None for one without a name."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str):
        return None
    name, namespace = str(schema["name"]), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def ids_of_others(
    topic: str, ids: Iterable[int], subjects: Subjects, registry: SchemaRegistryClient
) -> dict[int, Sequence[str]]:
    """Ids in a topic's messages that its subject has never had, each with the subjects that hold it.

    An id that the registry does not know is left out: nobody could read its messages anyway.
    """
    others: dict[int, Sequence[str]] = {}
    for schema_id in sorted(set(ids)):
        schema = registry.find_schema(schema_id)
        if schema is not None and (holders := registry.subjects_of(schema_id)):
            name = full_name(schema)
            if name is None or subjects.of(topic, name) not in holders:
                others[schema_id] = holders
    return others


def others_in_words(topic: str, others: Mapping[int, Sequence[str]]) -> list[str]:
    """A line for each of `ids_of_others`, which says what to do."""
    return [
        f"{topic}: its messages carry schema id {schema_id} of subject {' and '.join(holders)}, which is not"
        f" the topic's subject, so nobody checks its changes for {topic}: give --subject"
        f" {topic}={holders[0]}, or let its producers register where the deployment says"
        for schema_id, holders in others.items()
    ]
