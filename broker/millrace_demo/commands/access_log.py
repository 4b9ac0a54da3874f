"""`millrace publish-access-log`: a web server's log as PageView events in one cluster."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millrace_audit import AuditedProducer
from millrace_audit.reports.ranges import size
from millrace_demo.access_log import Part, check_log, publish_log


@click.command(
    "publish-access-log",
    epilog="Example: millrace publish-access-log access.log --topic PageView --cluster dc1 --part 1/2"
    " --bootstrap 127.0.0.1:9192 --registry http://127.0.0.1:8081",
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--topic", default="PageView", show_default=True, help="Topic to publish to.")
@click.option("--cluster", required=True, help="Name of the cluster published to, for example dc1.")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of that cluster.")
@click.option(
    "--registry",
    envvar="MILLRACE_REGISTRY",
    metavar="URL",
    required=True,
    help="The schema registry; it has PageView.",
)
@click.option(
    "--part",
    metavar="I/N",
    default="1/1",
    show_default=True,
    help="Only every N-th line from line I on, so that N datacenters share one file.",
)
@click.option("--server", default=socket.gethostname(), show_default="this host", help="Server's name.")
@click.option("--service", default="web", show_default=True, help="Service's name.")
@click.option(
    "--skip-bad-lines",
    is_flag=True,
    help="Publish the rest when lines cannot be read; without it nothing is published then.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON for a script.")
def publish_access_log(
    file: Path,
    topic: str,
    cluster: str,
    bootstrap: str,
    registry: str,
    part: str,
    server: str,
    service: str,
    skip_bad_lines: bool,
    as_json: bool,
) -> None:
    """Publish FILE, a web server's log in Apache's combined format, as events with the times of the log."""
    share = Part.parse(part)
    total, _ = check_log(file, share)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        AuditedProducer(bootstrap, registry, cluster=cluster, server=server, service=service) as producer,
    ):
        task = progress.add_task(f"{topic} to {cluster}", total=total)
        outcome = publish_log(
            file,
            producer,
            topic,
            part=share,
            skip_bad_lines=skip_bad_lines,
            on_event=lambda: progress.advance(task),
        )
    acknowledged = size(outcome.delivered.acknowledged)
    answer = {
        "topic": topic,
        "cluster": cluster,
        "instance": outcome.instance,
        "acknowledged": acknowledged,
        "bad_lines": outcome.bad_lines,
    }
    skipped = f", {outcome.bad_lines} lines left out" if outcome.bad_lines else ""
    words = f"published: {acknowledged} events to {topic} in {cluster}, instance {outcome.instance}{skipped}"
    click.echo(json.dumps(answer) if as_json else words)
    sys.stdout.flush()
