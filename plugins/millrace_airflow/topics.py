"""Which topics the shipped DAGs are about, and what each of them asks for.

    [PageView]                       a file of topics, in TOML: a table for each
    [SearchQuery]
    mirror = true
    [Click]
    max_bytes = "2GiB"
    conn_id = "millrace_eu"

A name with dots stands in quotes: ["Page.View"]. The file is read whenever Airflow parses a DAG.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.config import from_mapping
from millrace.errors import ConfigError
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID

TOPICS, FILE = "MILLRACE_TOPICS", "MILLRACE_TOPICS_FILE"
"""Variables of the environment of Airflow's DAG processor and workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of the DAGs."""

    topic: str
    conn_id: str = DEFAULT_CONN_ID
    """Where its brokers, its auditor and its warehouse are."""
    mirror: bool = False
    """A task mirrors it from each origin, before it is loaded; else the brokers do, all the time."""
    max_bytes: str = ""
    """`--max-bytes` of its loads."""
    max_rejected: str = ""
    """`--max-rejected` of its loads."""
    accept_rejected: bool = False
    """Whether its loads succeed though they have set records aside."""


def topics_of_environment() -> Sequence[Topic]:
    """The topics in the file that MILLRACE_TOPICS_FILE names, else those of MILLRACE_TOPICS.

    ConfigError names what is wrong in the file: Airflow shows it as the DAG's import error.
    """
    if file := os.environ.get(FILE):
        return read_topics(Path(file))
    names = [name.strip() for name in os.environ.get(TOPICS, "PageView,SearchQuery").split(",")]
    if not all(names):
        raise ConfigError(f"{TOPICS} has a topic without a name: write NAME,NAME")
    return [Topic(topic=name, mirror=name == "SearchQuery") for name in names]


def read_topics(path: Path) -> Sequence[Topic]:
    """The topics of a file; ConfigError when there is none, or when it says what nobody knows."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{FILE}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    if not tables:
        raise ConfigError(f"{path} names no topic: write [NAME] for each")
    for name, table in tables.items():
        if not isinstance(table, dict) or "topic" in table:
            raise ConfigError(f"{path}: {name} is no table of a topic: write [{name}], then its settings")
    return [
        from_mapping(Topic, {"topic": name, **table}, f"{path}: [{name}]") for name, table in tables.items()
    ]
