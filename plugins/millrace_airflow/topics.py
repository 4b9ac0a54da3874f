"""The topics of the shipped DAGs, from the file of topics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import ConfigError
from millrace.topics_file import VARIABLE, TopicPolicy, read_policies
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID


@dataclass(frozen=True, slots=True)
class DagTopic:
    """One topic of the DAGs."""

    name: str
    policy: TopicPolicy

    @property
    def conn_id(self) -> str:
        """Connection that names the topic's brokers, auditor and warehouse."""
        return self.policy.conn_id or DEFAULT_CONN_ID

    @property
    def default_args(self) -> dict[str, str]:
        """Default arguments of the topic's tasks: its owner, if it has one."""
        return {"owner": self.policy.owner} if self.policy.owner else {}

    @property
    def group_id(self) -> str:
        """Name of the topic's group of tasks."""
        return self.name.replace(".", "_")


def topics_of_environment(shipped: Path) -> Sequence[DagTopic]:
    """Return the topics in the file that MILLRACE_TOPICS_FILE names, or else in the shipped file.

    Raise ConfigError, naming the error in the file: Airflow shows it as the DAG's import error.
    """
    file = os.environ.get(VARIABLE) or shipped
    topics = [DagTopic(name, policy) for name, policy in read_policies(file).items()]
    if not topics:
        raise ConfigError(f"{file} names no topic for the DAGs: give each topic a table, such as [PageView]")
    return topics
