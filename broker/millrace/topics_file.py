r"""Policies of topics, in one file that MILLRACE_TOPICS_FILE names to every command.

    [PageView]                     a file in TOML, with a table for each topic
    ["shop.orders.v1"]             a name with dots is in quotes
    format = "json"
    time = "placedAt"
    proof = "carried"
    [Click]
    owner = "team-web"
    max_bytes = "2GiB"
    max_rejected = "1%"
    [SearchQuery]
    mirror = true
    [topics_matching.'legacy\..*']  every topic whose whole name matches the regular expression
    proof = "carried"

The value of a key is that of the topic's own table, else of the first matching expression that has the key.
An option of a command overrides the file. This module depends on no command.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from millrace.config import from_mapping
from millrace.errors import ConfigError, InvalidTopic
from millrace.escaping import escaped
from millrace.topic_names import check_topic_name

VARIABLE = "MILLRACE_TOPICS_FILE"
MATCHING = "topics_matching"
"""Table of the file whose keys are regular expressions; no topic of this name has a table of its own."""
PROOFS = ("complete", "carried")
FINGERPRINTS = ("fast", "strong")
FORMATS = ("avro", "avro-unframed", "json", "bytes", "text")
MAX_OWNER_CHARACTERS = 200
_HELD = 10_000
"""Most topics whose policies are held: producers choose names of topics."""
_UNITS_MS = {"h": 3_600_000, "d": 24 * 3_600_000}

Table: TypeAlias = Mapping[str, Any]
"""A table of the file: setting -> value, as TopicPolicy has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Settings of one topic."""

    subject: str = ""
    """Subject in the registry, or strategy that names it, as in `--subject TOPIC=`; empty for the default."""
    owner: str = ""
    """Team or person that owns the topic, named by Airflow and the auditor; empty for no owner."""
    format: str = ""
    """Format of the topic's messages, one of FORMATS; empty for the one of its first load, which is `avro` by
    default."""
    time: str = ""
    """Field with the time of an event without an audit header; empty for the record's time."""
    proof: str = "complete"
    """Verdict by which the auditor calls an hour proven, one of PROOFS."""
    silent_after: str = ""
    """Time after which the auditor accepts a silent producer instance, such as 24h or 7d; empty for never."""
    fingerprint: str = "fast"
    """Kind of fingerprint of the messages' content, one of FINGERPRINTS; `strong` also finds forgeries."""
    max_bytes: str = ""
    """Value of `--max-bytes` for the topic's loads."""
    max_rejected: str = ""
    """Value of `--max-rejected` for the topic's loads."""
    accept_rejected: bool = False
    """True if the topic's loads succeed although they have set records aside."""
    tombstones_as_rows: bool = False
    """True if the topic's loads write each tombstone as a row of nulls; else tombstones are stored beside the
    rows."""
    live: bool | None = None
    """True if loads bring branch `live` of the topic's table up to date, with rows that are not proven yet;
    false removes the branch."""
    partition: Sequence[str] | None = None
    """Partitions of the table besides the hour, such as `bucket(16, memberId)`; None keeps those it has."""
    sort: Sequence[str] | None = None
    """Order of the rows in the table's files, such as `url DESC NULLS LAST`; None keeps the one it has."""
    mirror: bool = False
    """True if a task of Airflow mirrors the topic from each origin before each load; else the brokers do."""
    conn_id: str = ""
    """Airflow's connection to the topic's brokers, auditor and warehouse; empty for the default
    connection."""

    @property
    def silent_after_ms(self) -> int | None:
        """`silent_after` in milliseconds; None for never."""
        text = self.silent_after
        return int(text[:-1]) * _UNITS_MS[text[-1]] if text else None


TopicPolicies = Mapping[str, TopicPolicy]
"""Topic -> its policy; a topic without one has NO_POLICY."""
NO_POLICY = TopicPolicy()


class FilePolicies(Mapping[str, TopicPolicy]):
    """Policies of the topics that a file names, and of those that match an expression in it.

    Iteration yields the named topics only: no file knows which topics match.
    """

    def __init__(self, topics: Mapping[str, Table], matching: Mapping[str, Table]) -> None:
        self._topics = topics
        self._matching = {pattern: (re.compile(pattern), table) for pattern, table in matching.items()}
        self._held: dict[str, TopicPolicy] = {}

    def tables(self, topic: str) -> Iterator[tuple[str, Table]]:
        """Yield the tables that hold for a topic, with their names; the first that has a key decides."""
        if topic in self._topics:
            yield f"[{topic}]", self._topics[topic]
        for pattern, (expression, table) in self._matching.items():
            if expression.fullmatch(topic):
                yield _name_of_matching(pattern), table

    def __getitem__(self, topic: str) -> TopicPolicy:
        if (held := self._held.get(topic)) is not None:
            return held
        tables = [table for _, table in self.tables(topic)]
        if not tables:
            raise KeyError(topic)
        merged = {key: value for table in reversed(tables) for key, value in table.items()}
        policy = TopicPolicy(**merged)
        if len(self._held) < _HELD:
            self._held[topic] = policy
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    def __bool__(self) -> bool:
        return bool(self._topics or self._matching)


def policies_of_topics(policies: TopicPolicies, topics: Iterable[str]) -> Mapping[str, TopicPolicy]:
    """Return the policy of each topic, without the others of the file."""
    return {topic: policies.get(topic, NO_POLICY) for topic in topics}


def policies_of_environment() -> TopicPolicies:
    """Return the policies in the file that MILLRACE_TOPICS_FILE names; none if the variable is not set."""
    file = os.environ.get(VARIABLE)
    return read_policies(file) if file else {}


def read_policies(file: str | Path) -> FilePolicies:
    """Return the policies in a file. Raise ConfigError if it cannot be read or a name or setting is wrong."""
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the file of topics {file} cannot be read ({error.strerror}): create it, or give another path"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    if not tables:
        raise ConfigError(f"{file} names no topic: write [NAME] for each")
    matching = tables.pop(MATCHING, {})
    if not isinstance(matching, dict):
        raise ConfigError(
            f"{file}: {MATCHING} is no table: write [{MATCHING}.'EXPRESSION'] for each expression"
        )
    for topic, table in tables.items():
        try:
            check_topic_name(topic)
        except InvalidTopic as error:
            raise ConfigError(f"{file}: {error}") from None
        _check_table(table, f"{file}: [{topic}]")
    for pattern, table in matching.items():
        where = f"{file}: {_name_of_matching(pattern)}"
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where} is not a regular expression: {error}") from None
        _check_table(table, where)
    return FilePolicies(tables, matching)


def _name_of_matching(pattern: str) -> str:
    return f"[{MATCHING}.'{pattern}']"


def _check_table(table: object, where: str) -> None:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table of a topic: write the name in brackets, then its settings")
    if any(isinstance(value, dict) for value in table.values()):
        raise ConfigError(f'{where} holds another table: write a name with dots in quotes, like ["a.b"]')
    policy = from_mapping(TopicPolicy, table, where)
    if policy.format not in ("", *FORMATS):
        raise ConfigError(f"{where}: format {policy.format!r} is unknown: write {' or '.join(FORMATS)}")
    if policy.proof not in PROOFS:
        raise ConfigError(f"{where}: proof {policy.proof!r} is unknown: write {' or '.join(PROOFS)}")
    if policy.fingerprint not in FINGERPRINTS:
        raise ConfigError(
            f"{where}: fingerprint {policy.fingerprint!r} is unknown: write {' or '.join(FINGERPRINTS)}"
        )
    if policy.silent_after and not re.fullmatch(r"[1-9][0-9]{0,3}[hd]", policy.silent_after):
        raise ConfigError(
            f"{where}: silent_after {policy.silent_after!r} is no time: write hours or days, like 24h or 7d"
        )
    _check_owner(policy.owner, where)


def _check_owner(owner: str, where: str) -> None:
    hidden = next((shown for character in owner if (shown := escaped(character)) != character), None)
    if hidden is not None:
        raise ConfigError(f"{where}: owner holds the control or hidden character {hidden}: take it out")
    if len(owner) > MAX_OWNER_CHARACTERS:
        raise ConfigError(f"{where}: owner has {len(owner)} characters: write {MAX_OWNER_CHARACTERS} at most")
