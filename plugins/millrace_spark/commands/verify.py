"""`millrace verify`: the proof that a warehouse is what was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from millrace.errors import MillraceError
from millrace_spark.commands.options import Invocation, command_of, run_job, show, table_of
from millrace_spark.jobs.verbs import Verify


@command_of(Verify)
def verify(request: Verify, invocation: Invocation) -> None:
    """Prove that WAREHOUSE is what was published; exit code 1 when a load, a file or a row is not.

    A warehouse on hdfs:// is read by a Spark job, any other one without Spark.

    Example: millrace verify /data/warehouse --topic PageView
    """
    from millrace_spark.jobs.verify import job

    tables = run_job("verify", request, invocation, job)
    problems = [problem for table in tables for problem in table["problems"]]
    invocation.print({"ok": not problems, "tables": tables}, _show)
    if problems:
        raise MillraceError(f"{len(problems)} problem(s) in {request.warehouse}: {problems[0]}")


def _show(answer: Mapping[str, Any]) -> None:
    shown = table_of("table", "folders", "expired", "files", "rows", "problems")
    for table in answer["tables"]:
        numbers = (*(table[name] for name in ("folders", "expired", "files", "rows")), len(table["problems"]))
        shown.add_row(table["table"], *(f"{number:,}" for number in numbers))
    show(shown)
    for kind in ("note", "problem"):
        for line in (line for table in answer["tables"] for line in table[f"{kind}s"]):
            click.echo(f"{kind}: {line}")
