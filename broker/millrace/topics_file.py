"""One file says what each topic asks for: MILLRACE_TOPICS_FILE names it to all who work on topics.

    [PageView]                     a file in TOML, with a table for each topic
    ["shop.orders.v1"]             a name with dots stands in quotes
    subject = "topic-value"
    proof = "carried"
    [Click]
    max_bytes = "2GiB"
    max_rejected = "1%"
    [SearchQuery]
    mirror = true

An option of a command outweighs the file. Knows the file alone, and nothing of those who read it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.config import from_mapping
from millrace.errors import ConfigError

VARIABLE = "MILLRACE_TOPICS_FILE"
PROOFS = ("complete", "carried")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """What one topic asks for."""

    subject: str = ""
    """The registry's subject, or how it is named, as behind `--subject TOPIC=`; empty: as for all topics."""
    proof: str = "complete"
    """The verdict by which the auditor calls an hour proven, one of PROOFS."""
    max_bytes: str = ""
    """`--max-bytes` of its loads."""
    max_rejected: str = ""
    """`--max-rejected` of its loads."""
    accept_rejected: bool = False
    """Whether its loads succeed though they have set records aside."""
    tombstones_as_rows: bool = False
    """Whether its loads make a row of nulls of each tombstone; else tombstones lie beside the rows."""
    mirror: bool = False
    """Whether a task of Airflow mirrors it from each origin before it is loaded; else the brokers do."""
    conn_id: str = ""
    """Airflow's connection to its brokers, its auditor and its warehouse; empty: the default one."""


TopicPolicies = Mapping[str, TopicPolicy]
"""By topic; what is not there asks for nothing."""
NO_POLICY = TopicPolicy()


def policies_of_environment() -> TopicPolicies:
    """What the file of MILLRACE_TOPICS_FILE says; nothing where the variable is not set."""
    file = os.environ.get(VARIABLE)
    return read_policies(file) if file else {}


def read_policies(file: str | Path) -> TopicPolicies:
    """What a file says; ConfigError when there is none, or when it says what nobody knows."""
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the file of topics {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None
    if not tables:
        raise ConfigError(f"{file} names no topic: write [NAME] for each")
    return {topic: _policy(table, f"{file}: [{topic}]") for topic, table in tables.items()}


def _policy(table: object, where: str) -> TopicPolicy:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table of a topic: write the name in brackets, then its settings")
    if any(isinstance(value, dict) for value in table.values()):
        raise ConfigError(f'{where} holds another table: write a name with dots in quotes, like ["a.b"]')
    policy = from_mapping(TopicPolicy, table, where)
    if policy.proof not in PROOFS:
        raise ConfigError(f"{where}: proof {policy.proof!r} is unknown: write {' or '.join(PROOFS)}")
    return policy
