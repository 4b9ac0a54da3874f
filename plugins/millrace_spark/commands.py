"""The commands of this plugin: `load`, `hourly`, `verify`, `mirror-batch`.

Each checks its options, hands over to one function and prints what that says. The Spark jobs run under
spark-submit as processes of their own; `verify` needs no Spark.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from millrace.config import parse_addresses
from millrace.errors import ConfigError, MillraceError

F = Callable[..., Any]

_MASTER = click.option(
    "--master", default="local[2]", show_default=True, help="Spark master the job is submitted to."
)
_WAREHOUSE = click.option(
    "--warehouse", required=True, metavar="URI", help="Folder of the warehouse: a path, file:// or hdfs://."
)
_RUN_ID = click.option(
    "--run-id", default="", help="Name of the run; a repeated run of one name finishes what the first began."
)
_SINK = click.option(
    "--sink",
    type=click.Choice(["direct", "spark"]),
    default="direct",
    show_default=True,
    help="Who writes Parquet: the tasks themselves (a folder they all see), or Spark (any Hadoop storage).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_WAREHOUSE
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the cluster to load from.")
@click.option("--registry", required=True, metavar="URL", help="The schema registry.")
@_RUN_ID
@_SINK
@click.option(
    "--accept-new-topic", is_flag=True, help="Go on with a topic that was deleted and created anew."
)
@click.option("--accept-gaps", is_flag=True, help="Go on over offsets that are missing in the log.")
@click.option("--accept-rejected", is_flag=True, help="Succeed although records could not be decoded.")
@_MASTER
@_JSON
def load(
    topics: Sequence[str],
    warehouse: str,
    bootstrap: str,
    registry: str,
    run_id: str,
    sink: str,
    accept_new_topic: bool,
    accept_gaps: bool,
    accept_rejected: bool,
    master: str,
    as_json: bool,
) -> None:
    """Load what is new in each TOPIC into the warehouse, exactly once, by one rename per topic.

    Records that cannot be decoded are set aside in the load, with reason and raw bytes; exit code 1 says so.

    Example: millrace load PageView --warehouse /data/warehouse --bootstrap 127.0.0.1:9092
    --registry http://127.0.0.1:8081
    """
    parse_addresses(bootstrap, "--bootstrap")
    settings = {
        "topics": list(dict.fromkeys(topics)),
        "bootstrap": bootstrap,
        "registry": registry,
        "warehouse": _absolute(warehouse),
        "run_id": run_id or _manual_run_id(),
        "sink": sink,
        "accept_new_topic": accept_new_topic,
        "accept_gaps": accept_gaps,
    }
    results = _submit("load", settings, master, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(results))
    else:
        _print_loads(results)
    if not accept_rejected:
        _refuse_rejected(results)


def _print_loads(results: Sequence[Mapping[str, Any]]) -> None:
    table = _table("topic", "load", "rows", "rejected", "hours", "")
    for result in results:
        shown = (result["load"], result["rows"], result["rejected"], len(result["hours"]))
        table.add_row(
            result["topic"], *("" if each is None else f"{each:,}" for each in shown), result["message"]
        )
    _print(table)
    for gap in (gap for result in results for gap in result["gaps"]):
        click.echo(f"gap: {gap}", err=True)


def _refuse_rejected(results: Sequence[Mapping[str, Any]]) -> None:
    """MillraceError when a load set records aside: it is published, and somebody must look at them."""
    set_aside = [
        f"{result['rejected']} in {result['topic']}/load={result['load']:010d}/_rejected"
        for result in results
        if result["rejected"]
    ]
    if set_aside:
        raise MillraceError(
            f"loaded, but records could not be decoded: {', '.join(set_aside)}, with reason and raw bytes;"
            " register the schema or mend the producer, or accept them with --accept-rejected"
        )


@click.command()
@click.argument("topic")
@_WAREHOUSE
@click.option("--hour", "hours", multiple=True, metavar="TIME", help="An hour to publish; may be repeated.")
@click.option(
    "--from", "start", default=None, metavar="TIME", help="Publish every hour from this time on ..."
)
@click.option("--to", "end", default=None, metavar="TIME", help="... up to, and without, this one.")
@click.option("--auditor", default="", metavar="URL", help="Auditor whose verdict is written into each hour.")
@_RUN_ID
@_SINK
@_MASTER
@_JSON
def hourly(
    topic: str,
    warehouse: str,
    hours: Sequence[str],
    start: str | None,
    end: str | None,
    auditor: str,
    run_id: str,
    sink: str,
    master: str,
    as_json: bool,
) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    settings = {
        "topic": topic,
        "hours": _hours(hours, start, end),
        "warehouse": _absolute(warehouse),
        "run_id": run_id or _manual_run_id(),
        "auditor": auditor,
        "sink": sink,
    }
    answer = _submit("hourly", settings, master, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = _table("hour", "rev", "rows", "verdict", "")
    for each in answer["hours"]:
        revision = "" if each["revision"] is None else str(each["revision"])
        table.add_row(each["hour"], revision, f"{each['rows']:,}", each["verdict"], each["message"])
    _print(table)


@click.command()
@click.argument("warehouse")
@click.option("--topic", default=None, help="Check this topic only.")
@click.option("--bootstrap", default=None, metavar="HOST:PORT", help="Also compare with this cluster's logs.")
@_JSON
def verify(warehouse: str, topic: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Prove that WAREHOUSE is what was published; exit code 1 when a load, a file or a row is not.

    Example: millrace verify /data/warehouse --topic PageView
    """
    from millrace.wire.client import ClusterClient
    from millrace_spark.filesystem import open_filesystem
    from millrace_spark.verify import verify as verify_warehouse
    from millrace_spark.warehouse import no_progress

    fs = open_filesystem(warehouse)
    with _steps("verify", no_progress) as on_folder:
        if bootstrap is None:
            reports = verify_warehouse(fs, topic, None, on_folder)
        else:
            parse_addresses(bootstrap, "--bootstrap")
            with ClusterClient(bootstrap) as client:
                reports = verify_warehouse(fs, topic, client, on_folder)
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        click.echo(json.dumps({"ok": not problems, "tables": [report.as_json() for report in reports]}))
    else:
        table = _table("table", "folders", "files", "rows", "problems")
        for report in reports:
            shown = (report.folders, report.files, report.rows, len(report.problems))
            table.add_row(report.table, *(f"{each:,}" for each in shown))
        _print(table)
        for note in (note for report in reports for note in report.notes):
            click.echo(f"note: {note}")
        for problem in problems:
            click.echo(f"problem: {problem}")
    if problems:
        raise MillraceError(f"{len(problems)} problem(s) in {warehouse}: {problems[0]}")


@click.command("mirror-batch")
@click.argument("topic")
@click.option(
    "--origin", required=True, metavar="CLUSTER", help="Name of the origin cluster, for example dc1."
)
@click.option("--origin-bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the origin cluster.")
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the aggregate cluster.")
@_MASTER
@_JSON
def mirror_batch(
    topic: str, origin: str, origin_bootstrap: str, bootstrap: str, master: str, as_json: bool
) -> None:
    """Copy what is new in TOPIC of an origin cluster into the aggregate cluster, each batch exactly once.

    Example: millrace mirror-batch SearchQuery --origin dc1 --origin-bootstrap 127.0.0.1:9092
    --bootstrap 127.0.0.1:9094
    """
    parse_addresses(origin_bootstrap, "--origin-bootstrap")
    parse_addresses(bootstrap, "--bootstrap")
    settings = {
        "topic": topic,
        "origin": origin,
        "origin_bootstrap": origin_bootstrap,
        "bootstrap": bootstrap,
    }
    answer = _submit("mirror", settings, master, fast_start=True)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = _table("origin partition", "target", "from", "to", "batches", "records", "dropped")
    for part in answer["partitions"]:
        table.add_row(f"{origin}/{topic}-{part['partition']}", *(f"{part[key]:,}" for key in _MIRRORED))
    _print(table)


_MIRRORED = ("target_partition", "start", "end", "batches", "records", "dropped")


def _submit(job: str, settings: Mapping[str, Any], master: str, *, fast_start: bool) -> Any:
    from millrace_spark.submit import submit

    with _steps(job) as on_line:
        return submit(job, settings, master=master, on_line=on_line, fast_start=fast_start)


@contextmanager
def _steps(what: str, quiet: Callable[[str], None] | None = None) -> Iterator[Callable[[str], None]]:
    """Shows the newest line beside a spinner on a terminal; elsewhere the lines themselves, for the log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield quiet or (lambda line: print(line, file=sys.stderr, flush=True))
        return
    with console.status(f"{what} ...") as status:
        yield lambda line: status.update(f"{line[: console.width - 4]}")


def _hours(hours: Sequence[str], start: str | None, end: str | None) -> list[str]:
    from millrace_spark.hourly import hours_between

    if (hours and (start or end)) or (not hours and not (start and end)):
        raise ConfigError("give either --hour, as often as needed, or --from and --to")
    if start and end:
        return hours_between(_time(start, "--from"), _time(end, "--to"))
    return [_time(hour, "--hour").strftime("%Y-%m-%dT%H") for hour in hours]


def _time(text: str, option: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a time like 2015-05-17T10:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _absolute(warehouse: str) -> str:
    from millrace_spark.filesystem import absolute

    return absolute(warehouse)


def _manual_run_id() -> str:
    return f"manual-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in (0, len(columns) - 1) else "right")
    return table


def _print(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to keep to
    console.print(table)
