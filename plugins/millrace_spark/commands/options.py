"""What the commands share: options, a Spark job submitted with its steps shown, tables for people."""

from __future__ import annotations

import collections
import functools
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from millrace.errors import ConfigError

WAREHOUSE = click.option(
    "--warehouse", required=True, metavar="URI", help="Folder of the warehouse: a path, file:// or hdfs://."
)
RUN_ID = click.option(
    "--run-id", default="", help="Name of the run; a repeated run of one name finishes what the first began."
)
SINK = click.option(
    "--sink",
    type=click.Choice(["direct", "spark"]),
    default="direct",
    show_default=True,
    help="Who writes Parquet: the tasks themselves (a folder they all see, or WebHDFS), or Spark.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where a command's job runs, and with what; see docs/clusters.md."""

    master: str
    conf: Mapping[str, str]
    archives: Sequence[str]


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --master, --conf and --archives to a command, which gets them as one argument `spark`."""

    @functools.wraps(command)
    def run(
        *arguments: Any, master: str, conf: Sequence[str], archives: Sequence[str], **options: Any
    ) -> Any:
        if not _MASTER.fullmatch(master):
            raise ConfigError(
                f"--master {master!r} is none: write local[2], spark://HOST:PORT, yarn or k8s://URL"
            )
        spark = SparkOptions(master=master, conf=dict(map(_key_and_value, conf)), archives=archives)
        return command(*arguments, spark=spark, **options)

    for option in reversed(_SPARK):
        run = option(run)
    return run


# local-cluster[workers,cores,MB] is Spark's own, for tests.
_MASTER = re.compile(r"local(-cluster)?(\[[\d*, ]+\])?|spark://[^/]+:\d+|yarn|k8s://.+")
_SPARK = (
    click.option(
        "--master", default="local[2]", show_default=True, help="Spark master the job is submitted to."
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A Spark setting; may be repeated, comes before ours.",
    ),
    click.option(
        "--archives",
        multiple=True,
        metavar="FILE#NAME",
        help="A packed environment whose Python the executors run; may be repeated, the first one is it.",
    ),
)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f"--conf {text!r} is not of the form spark.KEY=VALUE")
    return key, value


def submit_job(job: str, settings: Mapping[str, Any], spark: SparkOptions, *, fast_start: bool) -> Any:
    """The result of `jobs/<job>.py` under spark-submit, its steps shown; MillraceError with its own line."""
    from millrace_spark.commands.early import check_master
    from millrace_spark.jobs.submit import submit

    check_master(spark.master)
    with steps(job) as on_line, _from_the_first_step(on_line) as on_line:
        return submit(
            job,
            settings,
            master=spark.master,
            on_line=on_line,
            fast_start=fast_start,
            conf=spark.conf,
            archives=spark.archives,
        )


@contextmanager
def _from_the_first_step(on_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Holds back what Spark says while it starts, unless it fails before the first step without a reason."""
    from millrace_spark.jobs.submit import JobRefused

    held: collections.deque[str] = collections.deque(maxlen=100)
    begun = False

    def pass_on(line: str) -> None:
        nonlocal begun
        begun = begun or line.startswith("step: ")
        (on_line if begun else held.append)(line)

    try:
        yield pass_on
    except (JobRefused, KeyboardInterrupt):
        raise
    except BaseException:
        for line in () if begun else held:
            on_line(line)
        raise


@contextmanager
def steps(what: str, quiet: Callable[[str], None] | None = None) -> Iterator[Callable[[str], None]]:
    """Shows a bar with the newest line on a terminal; elsewhere the lines themselves, for the log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield quiet or _to_stderr
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{what} ...", total=None)

        def show(line: str) -> None:
            found = re.search(r" (\d+) of (\d+): ", line)
            done, total = (int(found[1]), int(found[2])) if found else (None, None)
            bar.update(task, description=line[: max(20, console.width - 40)], completed=done, total=total)

        yield show


def _to_stderr(line: str) -> None:
    # One write: print would write the end of the line by itself, and a job's two streams have a thread each.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def parse_time(text: str, option: str) -> datetime:
    """A time in ISO 8601 as UTC, which is also meant where no zone is given; ConfigError names the option."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):  # also where the zone takes it out of the calendar
        raise ConfigError(f"{option} {text!r} is not a time like 2015-05-17T10:00:00Z") from None


def parse_hours(hours: Sequence[str], start: str | None, end: str | None) -> list[str]:
    """The hours that --hour, or --from and --to, name; ConfigError when it is neither or both."""
    from millrace_spark.table.publish import hours_between

    if (hours and (start or end)) or (not hours and not (start and end)):
        raise ConfigError("give either --hour, as often as needed, or --from and --to")
    if start and end:
        return hours_between(parse_time(start, "--from"), parse_time(end, "--to"))
    return [_parse_hour(hour) for hour in hours]


def _parse_hour(text: str) -> str:
    time = parse_time(text, "--hour")
    if len(text.strip()) <= len("2015-05-17"):
        raise ConfigError(
            f"--hour {text!r} names a day: write an hour like 2015-05-17T10, or use --from and --to"
        )
    return time.isoformat()[: len("2015-05-17T10")]


def parse_age(text: str, option: str) -> float:
    """`30d`, `12h`, `90m` or `45s` in seconds; ConfigError names the option."""
    match = re.fullmatch(r"(\d+)([dhms])", text.strip())
    if match is None:
        raise ConfigError(f"{option} {text!r} is not an age like 30d, 12h, 90m or 45s")
    return float(int(match[1]) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[match[2]])


def absolute_warehouse(warehouse: str) -> str:
    """The warehouse as every process finds it; ConfigError when it can be none."""
    from millrace_spark.files.filesystem import absolute

    return absolute(warehouse)


def manual_run_id() -> str:
    """A run id that nobody has used."""
    return f"manual-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"


def table_of(*columns: str) -> Table:
    """A table for people: the first and the last column to the left, numbers between them to the right."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in (0, len(columns) - 1) else "right")
    return table


def show(table: Table) -> None:
    """Print a table; whole lines where there is no terminal to keep to."""
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to keep to
    console.print(table)
