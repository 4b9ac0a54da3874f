"""`millrace reload`: loads of past hours, read again from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click

from millrace.errors import ConfigError
from millrace_spark.commands import early
from millrace_spark.commands.options import Invocation, command_of, show, submit_job, table_of
from millrace_spark.jobs.verbs import Reload
from millrace_spark.jobs.words import parse_hours


@command_of(Reload)
def reload(request: Reload, invocation: Invocation) -> None:
    """Read the loads of past hours of TOPIC again, from the offsets they recorded, as their next edition.

    For after a decoder or a registry was mended. The loads are those that have rows of the hours, or rejected
    records that may belong to them; offsets that have expired are refused. `millrace hourly --late` then
    publishes the hours.

    Example: millrace reload PageView --hour 2015-05-17T10 --reason "schema 7 was missing"
    --warehouse /data/warehouse --bootstrap 127.0.0.1:9392 --registry http://127.0.0.1:8081
    """
    if not request.loads:
        request = replace(request, hours=parse_hours(request.hours, request.start, request.end))
    elif request.hours or request.start or request.end:
        raise ConfigError("give either --loads, or hours by --hour or --from and --to")
    early.check_table(request.warehouse, request.topic, request.loads)
    answer = submit_job("reload", request, invocation, fast_start=request.sink == "direct")
    invocation.print(answer, partial(_show, request))


def _show(request: Reload, answer: Mapping[str, Any]) -> None:
    table = table_of("load", "edition", "rows", "before", "rejected", "before", "")
    for load in answer["loads"]:
        numbers = (load[name] for name in ("rows", "rows_before", "rejected", "rejected_before"))
        message = "read again" if load["published"] else "this run had read it again already"
        table.add_row(f"{load['load']:010d}", str(load["edition"]), *(f"{n:,}" for n in numbers), message)
    show(table)
    command = f"millrace hourly {request.topic} --late --warehouse {request.warehouse} --auditor URL"
    click.echo(f"publish the hours with `{command}`")
