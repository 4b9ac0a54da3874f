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
def hourly(request: Hourly, invocation: Invocation) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    With --late alone: the next revision of every published hour that has late rows, or was read again. Hours
    named beside it are published also while they are empty, so that their first rows count as late.

    With --unpublished: every hour that was loaded and never published, if the auditor calls it complete, or
    cannot judge it after --unproven-after. An incomplete one is named and left: --hour publishes it.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    if request.hours or request.start or request.end:
        request = replace(request, hours=parse_hours(request.hours, request.start, request.end))
    elif not (request.late or request.unpublished):
        raise ConfigError(
            "which hours? give --hour, as often as needed, or --from and --to, or --late, or --unpublished"
        )
    early.check_table(request.warehouse, request.topic)
    answer = submit_job("hourly", request, invocation, fast_start=request.sink == "direct")
    invocation.print(answer, partial(_show, "hour" if request.unpublished else "published hour"))


def _show(which: str, answer: Mapping[str, Any]) -> None:
    if not answer["hours"]:
        click.echo(f"{answer['topic']}: every {which} has all rows that its loads have of it")
        return
    table = table_of("hour", "rev", "rows", "verdict", "")
    for hour in answer["hours"]:
        revision = "" if hour["revision"] is None else str(hour["revision"])
        table.add_row(hour["hour"], revision, f"{hour['rows']:,}", hour["verdict"], hour["message"])
    show(table)
