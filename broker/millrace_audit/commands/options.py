"""Options that the processes of the audit share, and their logging."""

from __future__ import annotations

import logging

import click

registry_option = click.option(
    "--registry", envvar="MILLRACE_REGISTRY", metavar="URL", required=True, help="The schema registry."
)
zookeeper_option = click.option(
    "--zookeeper",
    envvar="MILLRACE_ZOOKEEPER",
    metavar="HOST:PORT",
    required=True,
    help="The aggregate cluster's ZooKeeper, in which the readers of a tier agree which of them counts.",
)


def names_of(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def hush_requests() -> None:
    """Log no line for every request to the registry."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
