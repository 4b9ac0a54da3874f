"""`millrace zookeeper`: run the embedded ZooKeeper in the foreground; secure an ensemble's nodes."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from millrace.config import check_cluster_name
from millrace.errors import ConfigError, MillraceError
from millrace.help_texts import CommandGroup
from millrace.printing import say
from millrace.signals import stop_on_signals
from millrace.zookeeper.embedded import HEAP_MB, SILENT_SECONDS, ZooKeeper
from millrace.zookeeper.node_rights import draw_identities, load_identity, node_acl
from millrace.zookeeper.session import Session


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=2181,
    show_default=True,
    help="Port; 0 takes a free port.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of its data; created if it is missing.",
)
@click.option(
    "--heap-mb",
    type=click.IntRange(min=16),
    default=HEAP_MB,
    show_default=True,
    help="Most memory of its heap, which holds the data of all brokers, topics and groups.",
)
@click.pass_context
def zookeeper(context: click.Context, port: int, data_dir: Path | None, heap_mb: int) -> None:
    """Run a real ZooKeeper on 127.0.0.1, from the jars inside the installed PySpark.

    The commands below work with any ensemble.

    Example: millrace zookeeper --port 2181 --data-dir ./zookeeper
    """
    if context.invoked_subcommand is not None:
        return
    if data_dir is None:
        raise click.UsageError("Missing option '--data-dir'.")
    _run(port, data_dir, heap_mb)


def _run(port: int, data_dir: Path, heap_mb: int) -> None:
    stopping, started = threading.Event(), list[ZooKeeper]()

    def stop() -> None:
        stopping.set()
        for server in started:
            server.stop()

    stop_on_signals(stop, limited=True)  # killing ZooKeeper is safe; it ends with this process
    with ZooKeeper.start(data_dir, port, heap_mb) as server:
        started.append(server)
        if stopping.is_set():
            return
        say(f"ready: zookeeper on {server.address}")
        sys.stdout.flush()
        code = server.wait()
    if not stopping.is_set():
        if code is None:
            raise MillraceError(
                f"ZooKeeper has not answered for {SILENT_SECONDS:.0f} s and was ended: start it again, with"
                f" more than --heap-mb {heap_mb} if its data has grown"
            )
        if "OutOfMemoryError" in (data_dir / "zookeeper.err").read_text(errors="replace"):
            raise MillraceError(
                f"ZooKeeper's data has outgrown its heap of {heap_mb} MB: give --heap-mb more"
            )
        raise MillraceError(f"ZooKeeper ended with exit code {code}, see {data_dir / 'zookeeper.err'}")


@zookeeper.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def identities(directory: Path) -> None:
    """Create two identities for a ZooKeeper ensemble, in the files brokers.toml and clients.toml in
    DIRECTORY.

    Example: millrace zookeeper identities /etc/millrace/zookeeper
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, identity in draw_identities().items():
        path = directory / f"{name}.toml"
        keys = ("user", "password", "brokers", "clients")
        text = "".join(f'{key} = "{getattr(identity, key)}"\n' for key in keys)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists already: keep it, or give another directory") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        say(str(path))


@zookeeper.command()
@click.option(
    "--identity", metavar="FILE", required=True, help="The brokers' file of `millrace zookeeper identities`."
)
@click.option(
    "--cluster", "clusters", metavar="NAME", required=True, multiple=True, help="A cluster; can be repeated."
)
@click.option(
    "--zookeeper",
    "address",
    default="127.0.0.1:2181",
    show_default=True,
    metavar="HOST:PORT",
    help="The ensemble, addresses separated by commas.",
)
def secure(identity: str, clusters: tuple[str, ...], address: str) -> None:
    """Set the access rights of every ZooKeeper node of a cluster and of the audit, by the node's path. Safe
    to repeat.

    Example: millrace zookeeper secure --identity zookeeper/brokers.toml --cluster dc1
    """
    loaded = load_identity(identity)
    for cluster in clusters:
        check_cluster_name(cluster)
    session = Session.connect(address, identity=identity)
    try:
        changed, failed = 0, list[str]()
        for top in (*(f"/{cluster}" for cluster in clusters), "/audit"):
            if session.get(top) is None:
                if top != "/audit":
                    raise MillraceError(f"no cluster {top[1:]!r} in ZooKeeper at {address}")
                continue
            for path in session.tree(top):
                try:
                    changed += session.set_acl(path, node_acl(loaded, path))
                except MillraceError as error:
                    failed.append(f"{path}: {error}")
    finally:
        session.close()
    say(f"{changed} nodes have new rights")
    if failed:
        raise MillraceError(f"{len(failed)} nodes did not get their rights, such as {failed[0]}")
