"""`millrace security`: a folder with an authority, certificates, users and client files for a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from millrace.errors import ConfigError
from millrace.help_texts import CommandGroup
from millrace.printing import say
from millrace.security.folder import DAYS, HOSTS, USERS, SecurityFolder
from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.users import Users
from millrace_broker.security.user_rules import rules_of_users
from millrace_commands.users import cluster_option, session_of, zookeeper_option

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
days_option = click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=DAYS,
    show_default=True,
    help="Days for which the brokers' certificate is valid.",
)


@click.group(cls=CommandGroup)
def security() -> None:
    """Create a certificate authority, certificates, users and client files, and renew the certificates.

    Example: millrace security init security --host kafka-1.dc1
    """


@security.command()
@folder_argument
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    default=HOSTS,
    show_default=True,
    help="A name or an address by which clients reach a broker; repeatable.",
)
@click.option(
    "--user",
    "users",
    metavar="NAME",
    multiple=True,
    default=tuple(USERS),
    show_default=True,
    help="A user to create; repeatable.",
)
@days_option
def init(folder: Path, hosts: Sequence[str], users: Sequence[str], days: int) -> None:
    """Create a certificate authority, a certificate for the brokers, users and client files in DIR.

    Existing files stay, so users can be added later. Create the users in each cluster with `millrace
    security users DIR`. Everything is explained in docs/security.md.

    Example: millrace security init security --host kafka-1.dc1 --host kafka-2.dc1
    """
    made = SecurityFolder(folder).make(hosts, users, days)
    for path in made:
        say(path)
    if not made:
        say(f"nothing is missing in {folder}")


@security.command()
@folder_argument
@days_option
def renew(folder: Path, days: int) -> None:
    """Give the brokers a new key and certificate in DIR/broker.pem, for the hosts of the old one.

    A broker reads the new file within 5 s. Copy the file to brokers on other machines under another name, and
    then rename it.

    Example: millrace security renew security
    """
    security_folder = SecurityFolder(folder)
    security_folder.renew(days)
    say(security_folder.broker)


@security.command(name="users")
@folder_argument
@zookeeper_option
@cluster_option
def create_users(folder: Path, zookeeper: str, cluster: str) -> None:
    """Create the users of DIR in a cluster, and give them their rights. Existing users get the passwords of
    DIR.

    The rights are access rules for the users that `init` creates. They apply where brokers have `authorizer =
    true`.

    Example: millrace security users security --cluster dc1
    """
    made = SecurityFolder(folder)
    if not made.passwords():
        raise ConfigError(f"no user has a password in {folder}: run `millrace security init {folder}` first")
    with session_of(zookeeper, cluster) as session:
        for name in install(session, cluster, made):
            say(f"user {name} of {cluster}")


def install(session: Session, cluster: str, folder: SecurityFolder) -> list[str]:
    """Create a folder's users in a cluster, and access rules for new users; return the users' names."""
    users, passwords = Users(session, cluster), folder.passwords()
    # For new users only, and before they can log in: rights that an operator removed do not come back.
    new = {f"User:{name}" for name in passwords.keys() - set(users.names)}
    rules = [rule for rule in rules_of_users() if rule.principal in new]
    AclStore(session, cluster).change(lambda there: [*there, *rules])
    for name, password in passwords.items():
        users.set_password(name, password)
    return list(passwords)
