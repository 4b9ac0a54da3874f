"""The choice of an origin's topics to mirror, and of the way to mirror each.

A name in the configuration means that topic. A pattern (* ? [...]) means every topic with a matching name
that the origin's own producers fill: not topics that the origin mirrors itself, so that no message is
mirrored for ever or arrives twice, and not topics that belong to one cluster only. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from fnmatch import fnmatchcase

from millrace.config import OFFLINE_AUDIT_TOPIC, OriginConfig

INTERNAL_PREFIX = "__"
"""Prefix of Apache Kafka's internal topics: consumer offsets, transactions."""
OWN_TOPICS = frozenset({OFFLINE_AUDIT_TOPIC})
"""Topics in which readers of one cluster report about that cluster."""


class Choice(Enum):
    """Way in which a topic is mirrored."""

    PULLED = "pulled"
    BATCH = "batch"


def is_pattern(text: str) -> bool:
    """Return True if the text may mean several topics: no topic's name holds these characters."""
    return any(character in text for character in "*?[")


def names_only(config: OriginConfig) -> list[str] | None:
    """Return every topic that the configuration names.

    None if it has patterns, so that all topics must be read.
    """
    entries = [*config.topics, *config.batch_topics]
    return None if any(map(is_pattern, entries)) else entries


def choose(config: OriginConfig, topic: str) -> tuple[Choice | None, bool]:
    """Return the way in which a topic is mirrored (None: not at all), and True if the configuration has the
    topic's name.
    """
    for choice, entries in ((Choice.BATCH, config.batch_topics), (Choice.PULLED, config.topics)):
        if topic in entries:
            return choice, True
    if topic.startswith(INTERNAL_PREFIX) or topic in OWN_TOPICS or _matches(topic, config.exclude):
        return None, False
    for choice, entries in ((Choice.BATCH, config.batch_topics), (Choice.PULLED, config.topics)):
        if _matches(topic, entries):
            return choice, False
    return None, False


def _matches(topic: str, entries: Sequence[str]) -> bool:
    return any(fnmatchcase(topic, entry) for entry in entries)
