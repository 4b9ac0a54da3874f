"""Command lines of the millrace commands that Airflow's tasks run.

The command line separates Airflow from Spark: this package never imports the commands' code. A parameter of
an operator has the name of the option that it becomes. Plain functions of plain values; nothing is run here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
from collections.abc import Sequence
from datetime import datetime

from millrace.config import parse_time
from millrace.errors import ConfigError
from millrace_airflow.settings import MillraceSettings

WHOLE_HOUR = r"^\d{4}-\d\d-\d\d[T ]\d\d(:00){0,2}(\.0+)?(Z|[+-]\d\d(:?00)?)?$"
"""Pattern of the times that `interval` accepts, for DAG forms: Airflow checks patterns, not `date-time`."""
INTERVAL_START = "{{ data_interval_start | default('') }}"
INTERVAL_END = "{{ data_interval_end | default('') }}"
"""Times of a task's run; empty for a run without a data interval, which `interval` refuses."""
COMMANDS = {
    "load": ("bootstrap", "warehouse", "catalog", "run_id", "master"),
    "publish": ("warehouse", "catalog", "run_id"),
    "compact": ("warehouse", "catalog"),
    "reload": ("bootstrap", "warehouse", "catalog", "run_id", "master"),
    "expire": ("warehouse", "catalog"),
    "mirror-batch": ("bootstrap", "master"),
}
"""Command -> its options whose values come from the connection and the task."""


def environment(settings: MillraceSettings) -> dict[str, str]:
    """Return a command's environment variables: URLs of services and other settings that may hold passwords.

    Command lines are no place for them, because every user can read command lines.
    """
    named = {
        "MILLRACE_REGISTRY": settings.registry,
        "MILLRACE_AUDITOR": settings.auditor,
        "MILLRACE_SUBJECTS": settings.subjects,
        "MILLRACE_CLIENT": settings.client_file,
    }
    return {name: value for name, value in named.items() if value}


def command_line(
    settings: MillraceSettings, command: str, topics: Sequence[str], run_id: str, **options: object
) -> list[str]:
    """Return `millrace COMMAND` for a task as a list of arguments, without options that are None, empty or
    False.
    """
    values = {**dataclasses.asdict(settings), "run_id": run_id, "master": settings.spark_master}
    options = {name: values[name] for name in COMMANDS[command]} | options
    words: list[str] = []
    for name, value in options.items():
        if value is not None and value is not False and value != "":
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    # The worker's own interpreter, not the first `millrace` on its path.
    return [sys.executable, "-m", "millrace.cli", command, *topics, *words, "--json"]


def hour_options(start: str, end: str) -> dict[str, str]:
    """Return the options that name the whole hours of [start, end). Raise ConfigError as `interval` does."""
    first, last = interval(start, end)
    return {"from": _iso(first), "to": _iso(last)}


def run_id_of_task(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return the run id of a task's load: the same for every try of the task, also after it was cleared.

    It is readable for people, unique by its hash, and safe as a file name on any file system.
    """
    key = "\0".join([dag_id, run_id, task_id, str(map_index)])
    legible = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{dag_id}-{task_id}-{run_id}").strip("-")[:100]
    return f"{legible}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def interval(start: str, end: str) -> tuple[datetime, datetime]:
    """Return the interval [start, end) of whole hours in UTC.

    Raise ConfigError for a wrong time or interval. Hours are proved and published whole: the audit could
    answer for half an hour, a publication could not.
    """
    if not start and not end:
        raise ConfigError(
            "start and end are empty, and this run has no data interval: name the hours, or give the DAG a"
            " schedule with intervals, such as CronDataIntervalTimetable"
        )
    first, last = parse_time(start, "start"), parse_time(end, "end")
    if first >= last:
        raise ConfigError(
            f"start {_iso(first)} is not before end {_iso(last)}: give an interval of at least one hour"
            " (a schedule like @hourly has no data interval in Airflow 3; use CronDataIntervalTimetable)"
        )
    for name, time in (("start", first), ("end", last)):
        if time.minute or time.second or time.microsecond:
            raise ConfigError(
                f"{name} {_iso(time)} is not a whole hour, and hours are proved and published whole:"
                " give the beginning of an hour in UTC (for a schedule: 0 * * * *)"
            )
    return first, last


def _iso(instant: datetime) -> str:
    # Not strftime: it writes the year 1 as "1".
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")
