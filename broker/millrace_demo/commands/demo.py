"""`millrace demo`: its options, and the last line with its exit code."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from millrace.errors import ConfigError, MillraceError
from millrace.installation import require, shipped
from millrace.signals import interruptible

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
COMES = "the one that comes with Millrace"
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def _cluster(option: str) -> tuple[str, str]:
    name, equals, bootstrap = option.partition("=")
    if not (name and equals and bootstrap):
        raise click.BadParameter(f"{option!r} is not NAME=HOST:PORT", param_hint="--kafka")
    return name, bootstrap


@click.command()
@click.option(
    "--events",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="How many events to make up.",
)
@click.option(
    "--hours",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Over how many past hours they spread.",
)
@click.option("--access-log", type=EXISTING_FILE, help="Publish a web server's log instead of made events.")
@click.option(
    "--fault", type=click.Choice(["drop", "duplicate"]), help="Let the mirror withhold or repeat a batch."
)
@click.option(
    "--kafka",
    multiple=True,
    metavar="NAME=HOST:PORT",
    help="A cluster that runs already, of Apache Kafka say, as datacenter NAME.",
)
@click.option(
    "--deployment",
    type=EXISTING_FILE,
    default=shipped("deploy/local.toml"),
    show_default=COMES,
    help="What to run: a file of `millrace up`; its ports are not used.",
)
@click.option(
    "--dags", type=EXISTING_FOLDER, default=shipped("dags"), show_default=COMES, help="Where the DAG is."
)
@click.option(
    "--schemas",
    type=EXISTING_FOLDER,
    default=shipped("schemas"),
    show_default=COMES,
    help="The schemas to register.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this new folder and leave it there.")
def demo(kafka: tuple[str, ...], keep: Path | None, **chosen: Any) -> None:
    """Run the whole path once on real processes, then prove that nothing was lost or repeated.

    The last line is DEMO OK with the figures, or DEMO FAILED with the reason and exit code 1. With --kafka
    (once for each datacenter) producers publish to that cluster and the mirrors read it; the topics made
    there stay there.

    Example: millrace demo --events 20000 --hours 2
    """
    require("airflow", "numpy", "pyarrow", "pyspark")
    from millrace_demo.run import DemoOptions, run_demo

    clusters = dict(map(_cluster, kafka))
    scratch = _new_folder(keep)
    options = DemoOptions(kafka=clusters, scratch=scratch.absolute(), **chosen)
    try:
        with interruptible():
            outcome = run_demo(options, Console(width=None if Console().is_terminal else 120))
    except (MillraceError, KeyboardInterrupt) as error:
        click.echo(f"DEMO FAILED: {str(error) or 'interrupted'}{_where_logs_are(scratch)}")
        raise SystemExit(1) from error
    if outcome.failures:
        click.echo("\n".join([*outcome.failures, f"logs and data are in {scratch}"]))
    elif keep is None:
        shutil.rmtree(scratch)
    click.echo(str(outcome))
    if outcome.failures:
        raise SystemExit(1)


def _new_folder(keep: Path | None) -> Path:
    """An empty folder to work in; ConfigError when `keep` holds something that would be taken for our own."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"--keep {keep} cannot be used: {error.strerror}") from None
    if not os.access(keep, os.W_OK | os.X_OK):
        raise ConfigError(f"--keep {keep} cannot be written: name another folder, or mend its rights")
    if used:
        raise ConfigError(f"--keep {keep} is not empty: name a new folder, each demo begins with nothing")
    return keep


def _where_logs_are(scratch: Path) -> str:
    """The words that name the logs, if there are any; folders that stayed empty are removed."""
    logs = scratch / "logs"
    for folder in (logs, scratch):
        with suppress(OSError):
            folder.rmdir()  # refused unless it is empty: nothing was started then
    return f"; logs are in {logs}" if logs.is_dir() else ""
