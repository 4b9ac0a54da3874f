"""`millrace hourly`: hours of a topic, published from its loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click

from millrace.errors import ConfigError
from millrace_spark.commands import early
from millrace_spark.commands.options import Invocation, command_of, show, submit_job, table_of
from millrace_spark.jobs.verbs import Hourly
from millrace_spark.jobs.words import parse_hours


@command_of(Hourly)
def hourly(given: Hourly, invocation: Invocation) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    With --late alone: the next revision of every published hour that has late rows, or was read again. Hours
    named beside it are published also while they are empty, so that their first rows count as late.

    With --unpublished: every hour that was loaded and never published, if the auditor calls it complete, or
    cannot judge it after --unproven-after. An incomplete one is named and left: --hour publishes it.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    if given.hours or given.start or given.end:
        given = replace(given, hours=parse_hours(given.hours, given.start, given.end))
    elif not (given.late or given.unpublished):
        raise ConfigError(
            "which hours? give --hour, as often as needed, or --from and --to, or --late, or --unpublished"
        )
    early.check_table(given.warehouse, given.topic)
    answer = submit_job("hourly", given, invocation, fast_start=given.sink == "direct")
    invocation.print(answer, partial(_show, "hour" if given.unpublished else "published hour"))


def _show(which: str, answer: Mapping[str, Any]) -> None:
    if not answer["hours"]:
        click.echo(f"{answer['topic']}: every {which} has all rows that its loads have of it")
        return
    table = table_of("hour", "rev", "rows", "verdict", "")
    for hour in answer["hours"]:
        revision = "" if hour["revision"] is None else str(hour["revision"])
        table.add_row(hour["hour"], revision, f"{hour['rows']:,}", hour["verdict"], hour["message"])
    show(table)
