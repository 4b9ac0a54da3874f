"""`millrace up`: two datacenters and the offline one on this machine, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from millrace import config as settings
from millrace.errors import MillraceError
from millrace_demo.up import Supervisor, UpConfig, start


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("deploy/local.toml"))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the file.")
def up(file: Path, overrides: tuple[str, ...]) -> None:
    """Run every cluster of FILE with its ZooKeeper, registry and auditor; Ctrl-C or SIGTERM stops all.

    A process that dies is reported and ends the run with exit code 1.

    Example: millrace up deploy/local.toml --set data_dir=/tmp/millrace
    """
    config = settings.load(UpConfig, file, overrides)
    stop_on_signals()
    supervisor = Supervisor(Path(config.data_dir) / "logs")
    ready = False
    try:
        endpoints = start(config, supervisor)
        click.echo(f"zookeeper  {endpoints.zookeeper}")
        for name, bootstrap in endpoints.bootstraps.items():
            click.echo(f"{name:<10} {bootstrap}")
        for name, cluster in config.clusters.items():
            for address in cluster.metrics:
                click.echo(f"metrics    http://{address}/metrics of {name}")
        click.echo(f"registry   {endpoints.registry_url}")
        click.echo(f"auditor    {endpoints.auditor_url}")
        click.echo(f"ready: everything is up on {endpoints.bootstraps[endpoints.aggregate]}")
        sys.stdout.flush()
        ready = True
        supervisor.watch()
    except KeyboardInterrupt:
        if not ready:
            raise MillraceError("interrupted before everything was up") from None
        click.echo("stopping")
    finally:
        supervisor.stop()


def stop_on_signals() -> None:
    """Turn SIGTERM into the KeyboardInterrupt that Ctrl-C raises, once; later ones are ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
