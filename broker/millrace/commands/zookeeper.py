"""`millrace zookeeper`: runs the embedded ZooKeeper in the foreground until it is told to stop."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import click

from millrace.coordination.embedded import ZooKeeper
from millrace.errors import MillraceError


@click.command(epilog="Example: millrace zookeeper --port 2181 --data-dir ./zookeeper")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Where it keeps its data; created if it is not there.",
)  # fmt: skip
def zookeeper(port: int, data_dir: Path) -> None:
    """Run a real ZooKeeper on 127.0.0.1, from the jars inside the installed PySpark."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    with ZooKeeper.start(data_dir, port) as server:
        click.echo(f"ready: zookeeper on {server.address}")
        sys.stdout.flush()
        code = server.wait()
    raise MillraceError(f"ZooKeeper ended with exit code {code}, see {data_dir / 'zookeeper.err'}")


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(0)
