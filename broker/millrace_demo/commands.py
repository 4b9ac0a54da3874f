"""`millrace up` runs a deployment, `demo` proves the whole path on a deployment, and `publish-access-log`
sends a log.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from millrace import config as settings
from millrace.deployment_file import FILE, UpConfig
from millrace.errors import ConfigError, MillraceError
from millrace.installation import require, shipped
from millrace.printing import say
from millrace.signals import interruptible
from millrace.urls import without_secret

if TYPE_CHECKING:
    from millrace_demo.up import Endpoints

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_OURS = "the one that comes with Millrace"
_secure = click.option(
    "--secure", is_flag=True, help="Use TLS, with a separate user for every process; see docs/security.md."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the file.")
@_secure
def up(file: Path | None, overrides: tuple[str, ...], secure: bool) -> None:
    """Run all clusters of FILE, with ZooKeeper, the registry and the auditor, until Ctrl-C or SIGTERM.

    Without FILE it runs millrace.toml of this folder; without that file, it runs two datacenters and the
    offline one on this machine, with their data in ./millrace-data. A process that dies is reported and
    restarted; a process that dies repeatedly ends the run with exit code 1.

    With --secure everything but ZooKeeper uses TLS, every process logs in as a user of its own, and registry
    and auditor ask for tokens.

    Example: millrace up --set data_dir=/tmp/millrace
    """
    from millrace_demo.up import Deployment, Supervisor

    here = Path(FILE)
    file = file or (here if here.exists() else shipped("deploy/local.toml"))
    config = settings.load(UpConfig, file, overrides)
    if secure and not config.security:
        config = replace(config, security=str(Path(config.data_dir) / "security"))
    supervisor = Supervisor(Path(config.data_dir) / "logs", is_private=bool(config.security))
    ready = False
    try:
        with interruptible():
            if sys.stderr.isatty():
                say("starting everything, which takes half a minute", err=True)
            _echo(*_addresses(config, Deployment(config, supervisor).start()))
            ready = True
            supervisor.watch(_echo)
    except KeyboardInterrupt:
        if not ready:
            raise MillraceError("interrupted before everything was up") from None
        _echo("stopping")
    finally:
        supervisor.stop()
        if ready:
            say("stopped")


def _addresses(config: UpConfig, endpoints: Endpoints) -> Iterator[str]:
    """Yield a line for each part that was started, and the ready line."""
    yield f"zookeeper  {endpoints.zookeeper}"
    for name, bootstrap in endpoints.bootstraps.items():
        yield f"{name:<10} {bootstrap}"
    for name, cluster in config.clusters.items():
        for address in cluster.metrics:
            yield f"metrics    http://{address}/metrics of {name}"
    if endpoints.security is not None:
        yield f"clients    MILLRACE_CLIENT={endpoints.security.client_file('admin')}, and others beside it"
        yield f"authority  SSL_CERT_FILE={endpoints.security.ca}"
        yield f"tokens     {endpoints.security.token_file('registry')}, auditor.token beside it"
    yield f"registry   {without_secret(endpoints.registry_url)}"
    yield f"auditor    {without_secret(endpoints.auditor_url)}"
    yield f"console    {without_secret(endpoints.auditor_url)}/console"
    yield "ready: everything is up"


def _echo(*lines: str) -> None:
    for line in lines:
        say(line)
    sys.stdout.flush()


@click.command()
@click.option(
    "--events",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Number of events to generate.",
)
@click.option(
    "--hours",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Number of past hours over which the events are spread.",
)
@click.option("--access-log", type=_FILE, help="Publish a web server's log instead of generated events.")
@click.option(
    "--fault", type=click.Choice(["drop", "duplicate"]), help="Let the mirror withhold or repeat a batch."
)
@click.option(
    "--kafka",
    multiple=True,
    metavar="NAME=HOST:PORT",
    help="A cluster that runs already, for example Apache Kafka, as datacenter NAME or as `offline`.",
)
@click.option(
    "--deployment",
    type=_FILE,
    default=shipped("deploy/local.toml"),
    show_default=_OURS,
    help="Deployment to run, a file of `millrace up`; its ports are not used.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Replicas of each partition; with 2 or more, each cluster loses a broker and its disk "
    "during the run.",
)
@click.option(
    "--dags", type=_FOLDER, default=shipped("dags"), show_default=_OURS, help="Folder that has the DAG."
)
@click.option(
    "--schemas",
    type=_FOLDER,
    default=shipped("schemas"),
    show_default=_OURS,
    help="Folder of the schemas to register.",
)
@_secure
@click.option(
    "--java-services",
    type=_FOLDER,
    metavar="JARS",
    help="Let Java services send the events, as JSON; `make demo JSON=1` builds the folder of their jars.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this new folder, and keep it.")
def demo(kafka: tuple[str, ...], keep: Path | None, **chosen: Any) -> None:
    """Run the whole path once on real processes, then prove that nothing was lost or repeated.

    The last line is DEMO OK with the figures, or DEMO FAILED with the reason and exit code 1. With --kafka
    (once for each cluster) producers publish to that cluster and the mirrors read it, or write to it if it is
    the offline cluster. The topics created there stay there.

    Example: millrace demo --events 20000 --hours 2
    """
    require("airflow", "numpy", "pyarrow", "pyiceberg", "pyspark")
    from millrace_demo.run import DemoOptions, run_demo

    clusters = dict(map(_cluster, kafka))
    scratch = _new_folder(keep)
    options = DemoOptions(kafka=clusters, scratch=scratch.absolute(), **chosen)
    try:
        with interruptible():
            outcome = run_demo(options, Console(width=None if Console().is_terminal else 120))
    except (MillraceError, KeyboardInterrupt) as error:
        _echo(*f"DEMO FAILED: {str(error) or 'interrupted'}{_logs_hint(scratch)}".splitlines())
        raise SystemExit(1) from error
    if outcome.failures:
        _echo(*outcome.failures, f"logs and data are in {scratch}")
    elif keep is None:
        shutil.rmtree(scratch)
    say(str(outcome))
    if outcome.failures:
        raise SystemExit(1)


def _cluster(option: str) -> tuple[str, str]:
    name, equals, bootstrap = option.partition("=")
    if not (name and equals and bootstrap):
        raise click.BadParameter(f"{option!r} is not NAME=HOST:PORT", param_hint="--kafka")
    return name, bootstrap


def _new_folder(keep: Path | None) -> Path:
    """Return an empty folder to work in.

    Raise ConfigError when `keep` holds files, which could be mistaken for the demo's.
    """
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"--keep {keep} cannot be used: {error.strerror}") from None
    if not os.access(keep, os.W_OK | os.X_OK):
        raise ConfigError(f"--keep {keep} cannot be written: name another folder, or correct its permissions")
    if used:
        raise ConfigError(f"--keep {keep} is not empty: name a new folder, each demo begins with nothing")
    return keep


def _logs_hint(scratch: Path) -> str:
    """Return a hint at the folder of the logs, if there are any. Remove empty folders."""
    logs = scratch / "logs"
    for folder in (logs, scratch):
        with suppress(OSError):
            folder.rmdir()  # refused unless it is empty: nothing was started then
    return f"; logs are in {logs}" if logs.is_dir() else ""


@click.command("publish-access-log")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--topic", metavar="NAME", default="PageView", show_default=True, help="Topic to publish to.")
@click.option(
    "--cluster", metavar="NAME", required=True, help="Name of the cluster to publish to, for example dc1."
)
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of that cluster.")
@click.option(
    "--registry",
    envvar="MILLRACE_REGISTRY",
    metavar="URL",
    required=True,
    help="The schema registry, which has the schema PageView.",
)
@click.option(
    "--format",
    "log_format",
    metavar="FORMAT",
    show_default="the usual ones",
    help="The text of Apache's LogFormat or nginx's log_format, if it is none of the usual formats.",
)
@click.option(
    "--part",
    metavar="I/N",
    default="1/1",
    show_default=True,
    help="Publish only every N-th line, beginning with line I, so that N datacenters share one file.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Keep publishing the lines that are written to FILE, through rotations, until SIGTERM or Ctrl-C.",
)
@click.option(
    "--position",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --follow: file with the position up to which FILE is published; the next run continues there.",
)
@click.option(
    "--refused",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="FILE's name with .refused, in this folder",
    help="File for the lines that are not events, with the reasons.",
)
@click.option(
    "--server", metavar="NAME", default=socket.gethostname(), show_default="this host", help="Server's name."
)
@click.option("--service", metavar="NAME", default="web", show_default=True, help="Service's name.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON for a script.")
def publish_access_log(
    file: Path,
    log_format: str | None,
    part: str,
    follow: bool,
    position: Path | None,
    refused: Path | None,
    as_json: bool,
    **target: str,
) -> None:
    """Publish FILE, a web server's log, as events with the times of the log; `-` is standard input.

    FILE may be compressed with gzip. The usual formats are Apache's common, combined and vhost_combined, and
    nginx's main; values after the user agent are ignored. A line that is not an event is skipped.

    Example: millrace publish-access-log access.log --topic PageView --cluster dc1 --part 1/2 --bootstrap
    127.0.0.1:9192 --registry http://127.0.0.1:8081
    """
    from millrace_demo.access_log import Part, RefusedLines
    from millrace_demo.log_format import LogFormat
    from millrace_demo.log_lines import STDIN
    from millrace_demo.send_log import Reading, Target, send_log

    if follow and (file == STDIN or file.suffix == ".gz"):
        raise MillraceError(f"--follow {file}: only a plain file grows; leave --follow out")
    if position is not None and not follow:
        raise MillraceError(
            "--position needs --follow: without --follow, FILE is published once, from its beginning"
        )
    reading = Reading(
        file=file,
        part=Part.parse(part),
        log_format=LogFormat(log_format),
        refused=RefusedLines(refused or Path(f"{'stdin' if file == STDIN else file.name}.refused")),
        follow=follow,
        position=position,
    )
    sent = send_log(reading, Target(**target))
    _echo(json.dumps(sent.as_json()) if as_json else str(sent))
