"""What the processes of the audit are given alike, and how they log."""

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
    help="The aggregate cluster's ZooKeeper: it keeps whose turn it is to count.",
)


def names_of(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def hush_requests() -> None:
    """Log no line for every request to the registry."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
