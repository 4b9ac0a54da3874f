"""End of a run: stored in a file of its own, once for each run id, before the first byte is read.

A cleared or retried task finds the plan of its first attempt and reads to the same end, however many messages
have arrived since. The start is not planned: a run starts at the end of the newest load.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from millrace.errors import MillraceError
from millrace_audit.reports.counts import MOST_AHEAD_MS
from millrace_warehouse.history.layout import Folder, Topic
from millrace_warehouse.history.manifest import FORMAT, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEnd:
    """First offset of a partition that the run does not read."""

    partition: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The end of one run's load of one topic."""

    topic: str
    topic_id: str
    cluster_id: str
    run_id: str
    created: str
    ends: Sequence[PlannedEnd]
    max_bytes: int | None = None
    """Most log bytes that the run may read; None for no limit."""
    until_ms: int | None = None
    """Time limit in ms since the epoch: the run reads the records before it. None for no limit."""
    format: int = FORMAT

    @property
    def file_by_ms(self) -> int:
        """Rows with this time or a later one have no hour: a day after the plan, by its clock."""
        return int(datetime.fromisoformat(self.created).timestamp() * 1000) + MOST_AHEAD_MS

    @property
    def end_offsets(self) -> Mapping[int, int]:
        return {planned.partition: planned.end for planned in self.ends}


def plan_path(topic: str, run_id: str) -> str:
    """Return the path of a run's plan."""
    return f"{Folder.PLANS.path(topic)}/{name_of_run(run_id)}.json"


def name_of_run(run_id: str) -> str:
    """Return a run's name for paths: a run id may hold any character, such as Airflow's colons."""
    name = urllib.parse.quote(run_id, safe="")
    if len(name) > 200:
        name = f"{name[:130]}-{hashlib.sha256(run_id.encode()).hexdigest()}"
    return name


def freeze(topic: Topic, run_id: str, propose: Callable[[], Plan]) -> tuple[Plan, bool]:
    """Return the run's plan, and True if this call made it. `propose` is called only when there is no plan.

    Two drivers of one run may both propose. The file is created exclusively, and both follow the winner's
    plan.
    """
    path = plan_path(topic.name, run_id)
    try:
        return decode(Plan, topic.storage.read(path), path), False
    except FileNotFoundError:
        made = topic.storage.create(path, encode(propose()))
        return decode(Plan, topic.storage.read(path), path), made


def check_planned_log(plan: Plan, cluster_id: str, topic_id: str) -> None:
    """Raise MillraceError when the plan is for another cluster, or for a topic that was recreated since."""
    if plan.cluster_id != cluster_id:
        raise MillraceError(
            f"run {plan.run_id!r} had planned what to load of {plan.topic} on cluster {plan.cluster_id},"
            f" this is {cluster_id}: check --bootstrap, or use a new run id"
        )
    if plan.topic_id != topic_id:
        raise MillraceError(
            f"topic {plan.topic} was deleted and recreated after run {plan.run_id!r} had planned what to"
            f" load (id {plan.topic_id}, now {topic_id}): use a new run id"
        )
