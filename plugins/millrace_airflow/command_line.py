"""The millrace commands an Airflow task runs, as words of a command line.

The command line is the seam between Airflow and Spark: this package never imports what the commands do.
Plain functions of plain values; nothing is run here.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from millrace.errors import ConfigError
from millrace_airflow.settings import MillraceSettings

WHOLE_HOUR = r"^\d{4}-\d\d-\d\d[T ]\d\d(:00){0,2}(\.0+)?(Z|[+-]\d\d(:?00)?)?$"
"""What `interval` takes, for the forms of DAGs: Airflow checks a pattern, and of `date-time` nothing."""


def environment(settings: MillraceSettings) -> dict[str, str]:
    """The URLs of the services for a command, which may hold passwords: every user reads command lines."""
    return {"MILLRACE_REGISTRY": settings.registry, "MILLRACE_AUDITOR": settings.auditor}


def load_command(
    settings: MillraceSettings,
    topics: Sequence[str],
    run_id: str,
    *,
    topics_matching: str = "",
    max_bytes: str = "",
    until: str = "",
    max_rejected: str = "",
) -> list[str]:
    """`millrace load`: the topics' new records into the warehouse, once, whoever asks and however often.

    What is empty is left to the command.
    """
    options = ["--bootstrap", settings.bootstrap]
    given = {
        "--topics-matching": topics_matching,
        "--max-bytes": max_bytes,
        "--until": until,
        "--max-rejected": max_rejected,
    }
    options += [word for option, value in given.items() if value for word in (option, value)]
    return _millrace(settings, "load", *topics, *options, *_into_warehouse(settings, run_id))


def hourly_command(
    settings: MillraceSettings, topic: str, start: datetime, end: datetime, run_id: str, *, late: bool = False
) -> list[str]:
    """`millrace hourly`: the next revision of every hour in [start, end) that has news.

    With `late` also of every hour published before.
    """
    options = ["--from", _iso(start), "--to", _iso(end)]
    options += ["--late"] if late else []
    return _millrace(settings, "hourly", topic, *options, *_into_warehouse(settings, run_id))


def late_hours_command(settings: MillraceSettings, topic: str, run_id: str) -> list[str]:
    """`millrace hourly --late`: the next revision of every published hour that has news, and no other."""
    return _millrace(settings, "hourly", topic, "--late", *_into_warehouse(settings, run_id))


def unpublished_hours_command(
    settings: MillraceSettings, topic: str, unproven_after: str, run_id: str
) -> list[str]:
    """`millrace hourly --late --unpublished`: late rows, and hours that were loaded and never published."""
    options = ["--late", "--unpublished", "--unproven-after", unproven_after, "--auditor", settings.auditor]
    return _millrace(settings, "hourly", topic, *options, *_into_warehouse(settings, run_id))


def reload_command(
    settings: MillraceSettings, topic: str, start: datetime, end: datetime, reason: str, run_id: str
) -> list[str]:
    """`millrace reload`: the loads of the hours in [start, end), read again from the log.

    ConfigError without a reason: it is kept with the loads.
    """
    if not reason.strip():
        raise ConfigError("reason is empty: say why these hours are read again")
    options = ["--from", _iso(start), "--to", _iso(end), "--reason", reason]
    options += ["--bootstrap", settings.bootstrap]
    return _millrace(settings, "reload", topic, *options, *_into_warehouse(settings, run_id))


def expire_command(settings: MillraceSettings, topic: str, older_than: str) -> list[str]:
    """`millrace expire`: data files of old loads whose rows are all in published hours go."""
    options = ["--warehouse", settings.warehouse, "--older-than", older_than]
    return _millrace(settings, "expire", topic, *options)


def mirror_command(settings: MillraceSettings, topic: str, origin: str, *, max_bytes: str = "") -> list[str]:
    """`millrace mirror-batch`: the origin's new batches of a topic into the aggregate cluster."""
    options = ["--origin", origin, "--origin-bootstrap", settings.origin(origin)]
    options += ["--max-bytes", max_bytes] if max_bytes else []
    return _millrace(settings, "mirror-batch", topic, *options, "--bootstrap", settings.bootstrap)


def _into_warehouse(settings: MillraceSettings, run_id: str) -> list[str]:
    sink = ["--sink", settings.sink] if settings.sink else []
    return ["--warehouse", settings.warehouse, "--run-id", run_id, *sink]


def _millrace(settings: MillraceSettings, *words: str) -> list[str]:
    master = ["--master", settings.spark_master] if settings.spark_master else []
    # The interpreter of the worker, not whatever `millrace` is first on its path.
    return [sys.executable, "-m", "millrace.cli", *words, *master, "--json"]


def run_id_of_task(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The name under which a load keeps its plan: the same for every try of a task, and after a clear.

    Legible for people, unique by its hash, and safe as a file name on any file system.
    """
    key = "\0".join([dag_id, run_id, task_id, str(map_index)])
    legible = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{dag_id}-{task_id}-{run_id}").strip("-")[:100]
    return f"{legible}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def interval(start: str, end: str) -> tuple[datetime, datetime]:
    """The interval [start, end) of whole hours in UTC; ConfigError when a text is no time, or it is none.

    What is proved is what is published: the audit could answer for half an hour, a revision cannot.
    """
    first, last = _instant(start, "start"), _instant(end, "end")
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


def _instant(text: str, what: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{what} {text!r} is not a time like 2015-05-17T10:00:00Z") from None


def _iso(instant: datetime) -> str:
    # Not strftime: it writes the year 1 as "1".
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")
