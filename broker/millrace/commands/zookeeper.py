"""`millrace zookeeper`: runs the embedded ZooKeeper in the foreground until it is told to stop."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import click

from millrace.coordination.embedded import ZooKeeper
from millrace.errors import MillraceError
from millrace.signals import stop_on_signals


@click.command(epilog="Example: millrace zookeeper --port 2181 --data-dir ./zookeeper")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where it keeps its data; created if it is not there.",
)
def zookeeper(port: int, data_dir: Path) -> None:
    """Run a real ZooKeeper on 127.0.0.1, from the jars inside the installed PySpark."""
    stopping, started = threading.Event(), list[ZooKeeper]()

    def stop() -> None:
        stopping.set()
        for server in started:
            server.stop()

    stop_on_signals(stop, limited=True)  # ZooKeeper may be killed at any moment, and ends with this process
    with ZooKeeper.start(data_dir, port) as server:
        started.append(server)
        if stopping.is_set():
            return
        click.echo(f"ready: zookeeper on {server.address}")
        sys.stdout.flush()
        code = server.wait()
    if not stopping.is_set():
        raise MillraceError(f"ZooKeeper ended with exit code {code}, see {data_dir / 'zookeeper.err'}")
