"""`millrace users`: create, list and delete the users of a cluster, in its ZooKeeper."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from millrace.config import check_cluster_name
from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_records, say
from millrace.security.certificates import read_secret
from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from millrace_broker.security.scram import ITERATIONS, MECHANISMS

zookeeper_option = click.option(
    "--zookeeper",
    default="127.0.0.1:2181",
    show_default=True,
    metavar="HOST:PORT",
    help="The cluster's ensemble, addresses separated by commas.",
)
cluster_option = click.option(
    "--cluster", metavar="NAME", required=True, help="Name of the cluster, for example dc1."
)


@click.group(cls=CommandGroup)
def users() -> None:
    """Create, list and delete the users who log in to a cluster by SCRAM.

    Example: millrace users list --cluster dc1
    """


@users.command()
@click.argument("name")
@click.option(
    "--password-file",
    metavar="FILE",
    default="",
    help="File that only you may read, with the password in its first line; without it the command prompts.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(MECHANISMS)),
    multiple=True,
    default=list(MECHANISMS),
    show_default=True,
    help="Mechanism by which the user may log in.",
)
@click.option(
    "--iterations", type=int, default=ITERATIONS, show_default=True, help="Hash iterations of the password."
)
@zookeeper_option
@cluster_option
def create(
    name: str, password_file: str, mechanisms: Sequence[str], iterations: int, zookeeper: str, cluster: str
) -> None:
    """Create user NAME, or give it a new password; open connections stay open.

    Example: millrace users create alice --cluster dc1 --password-file alice.password
    """
    if password_file:
        password = read_secret(password_file, "the password")
    elif not sys.stdin.isatty():
        raise MillraceError("there is no terminal to ask for the password: name a --password-file")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    with open_users(zookeeper, cluster) as registry:
        registry.set_password(name, password, mechanisms, iterations)
    say(f"user {name} of {cluster}: {', '.join(mechanisms)}")


@users.command(name="list")
@json_option()
@zookeeper_option
@cluster_option
def list_users(as_json: bool, zookeeper: str, cluster: str) -> None:
    """Print each user and its login mechanisms.

    Example: millrace users list --cluster dc1
    """
    with open_users(zookeeper, cluster) as registry:
        records = [
            {"user": name, "mechanism": mechanism, "iterations": one.iterations}
            for name in registry.names
            for mechanism, one in (registry.credentials(name) or {}).items()
        ]
    print_records(records, as_json=as_json, none=f"{cluster} has no users")


@users.command()
@click.argument("name")
@zookeeper_option
@cluster_option
def delete(name: str, zookeeper: str, cluster: str) -> None:
    """Delete user NAME; brokers close its connections.

    Example: millrace users delete alice --cluster dc1
    """
    with open_users(zookeeper, cluster) as registry:
        try:
            registry.delete(name)
        except LookupError as error:
            raise MillraceError(f"{error} in cluster {cluster}: see `millrace users list`") from None
    say(f"deleted user {name} of {cluster}")


@contextmanager
def open_users(zookeeper: str, cluster: str) -> Iterator[Users]:
    """Open the users of an existing cluster. Raise MillraceError without one."""
    with session_of(zookeeper, cluster) as session:
        yield Users(session, cluster)


@contextmanager
def session_of(zookeeper: str, cluster: str) -> Iterator[Session]:
    """Open a session with the ensemble of an existing cluster. Raise MillraceError without one."""
    check_cluster_name(cluster)
    session = Session.connect(zookeeper)
    try:
        if session.get(f"/{cluster}/id") is None:
            raise MillraceError(
                f"no cluster {cluster!r} in ZooKeeper at {zookeeper}: start one of its brokers first"
            )
        yield session
    finally:
        session.close()
