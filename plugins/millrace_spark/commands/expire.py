"""`millrace expire`: data files that nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from millrace_spark.commands.options import Invocation, command_of, run_job, show, table_of
from millrace_spark.jobs.verbs import Expire


@command_of(Expire)
def expire(request: Expire, invocation: Invocation) -> None:
    """Delete data files of old loads of TOPIC whose rows are all in published hours, and old revisions.

    A load is kept while one of its hours is not published from its newest edition, or the hour's own files
    are damaged. Manifests and rejected records stay.

    Example: millrace expire PageView --warehouse /data/warehouse --older-than 30d
    """
    from millrace_spark.jobs.expire import expire as job

    answer = run_job("expire", request, invocation, job)
    invocation.print(answer, partial(_show, "would delete" if request.dry_run else "deleted"))


def _show(deleted: str, answer: Mapping[str, Any]) -> None:
    columns = ("loads", "revisions", "plans", "files", "bytes")
    table = table_of("", *columns, "")
    table.add_row(deleted, *(f"{answer[name]:,}" for name in columns), "")
    show(table)
    for folder, reason in answer["kept"].items():
        click.echo(f"kept: {folder}: {reason}", err=True)
