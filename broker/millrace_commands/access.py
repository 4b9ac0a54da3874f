"""`millrace access`: makes tokens for the web services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from millrace.errors import ConfigError
from millrace.help_texts import CommandGroup
from millrace.printing import say
from millrace.service.access import add_entry

ROLES = ("read", "register", "admin", "accept", "write", "metrics")
"""Roles that the routes of the services require."""


@click.group(cls=CommandGroup)
def access() -> None:
    """Create tokens for clients of the registry, the auditor, agents and metrics.

    Example: millrace access add registry-access.toml loads read
    """


@access.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("name")
@click.argument("roles", nargs=-1, required=True)
def add(file: Path, name: str, roles: Sequence[str]) -> None:
    """Add a client NAME with ROLES to FILE, and print its token. The token cannot be printed again: FILE
    keeps a hash only.

    Roles of the registry: read, register, admin, also for subjects (register:web-*). Of the auditor: read,
    accept, metrics. Of an agent: write, also for topics (write:web-*), metrics. Of brokers and readers:
    metrics.

    Example: millrace access add registry-access.toml web read "register:web-*"
    """
    for role in roles:
        if role.partition(":")[0] not in ROLES:
            raise ConfigError(f"role {role!r} is none of {', '.join(ROLES)}: no service accepts it")
    say(add_entry(file, name, roles))
