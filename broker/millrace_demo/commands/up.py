"""`millrace up`: two datacenters and the offline one on this machine, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from millrace import config as settings
from millrace.errors import MillraceError
from millrace.installation import shipped
from millrace.signals import interruptible
from millrace_demo.up import Endpoints, Supervisor, UpConfig, start


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the file.")
def up(file: Path | None, overrides: tuple[str, ...]) -> None:
    """Run every cluster of FILE with its ZooKeeper, registry and auditor; Ctrl-C or SIGTERM stops all.

    Without FILE it runs two datacenters and the offline one on this machine, their data in ./millrace-data.
    A process that dies is reported and started again; one that dies again and again ends the run with exit
    code 1.

    Example: millrace up --set data_dir=/tmp/millrace
    """
    config = settings.load(UpConfig, file or shipped("deploy/local.toml"), overrides)
    supervisor = Supervisor(Path(config.data_dir) / "logs")
    ready = False
    try:
        with interruptible():
            _tell(*_addresses(config, start(config, supervisor)))
            ready = True
            supervisor.watch(_tell)
    except KeyboardInterrupt:
        if not ready:
            raise MillraceError("interrupted before everything was up") from None
        _tell("stopping")
    finally:
        supervisor.stop()
        if ready:
            click.echo("stopped")


def _addresses(config: UpConfig, endpoints: Endpoints) -> Iterator[str]:
    """A line for each thing that was started, and the ready line."""
    yield f"zookeeper  {endpoints.zookeeper}"
    for name, bootstrap in endpoints.bootstraps.items():
        yield f"{name:<10} {bootstrap}"
    for name, cluster in config.clusters.items():
        for address in cluster.metrics:
            yield f"metrics    http://{address}/metrics of {name}"
    yield f"registry   {endpoints.registry_url}"
    yield f"auditor    {endpoints.auditor_url}"
    yield f"ready: everything is up on {endpoints.bootstraps[endpoints.aggregate]}"


def _tell(*lines: str) -> None:
    click.echo("\n".join(lines))
    sys.stdout.flush()
