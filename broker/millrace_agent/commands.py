"""`millrace agent`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from millrace.errors import MillraceError
from millrace.logs import start_logging
from millrace.printing import say
from millrace.service.options import door_options, tls_of
from millrace_audit.commands.options import hush_requests, registry_option
from millrace_registry.subjects import ENVIRONMENT, OPTION_HELP, Subjects


@click.command()
@click.option("--cluster", metavar="NAME", required=True, help="Name of the cluster to produce to.")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the cluster.")
@registry_option
@click.option("--service", metavar="NAME", required=True, help="Service that sends the events.")
@click.option("--server", metavar="NAME", help="Server name in the events; default: this machine's name.")
@click.option(
    "--spool",
    metavar="DIR",
    type=click.Path(path_type=Path),
    required=True,
    help="This agent's folder for events that the brokers do not have yet.",
)
@click.option(
    "--spool-bytes",
    type=click.IntRange(min=16 << 20),
    default=1 << 30,
    show_default=True,
    help="Largest size of the events in the spool; a request that would exceed it is answered with 503.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8083",
    show_default=True,
    help="Address to accept events on; port 0 takes a free port.",
)
@click.option(
    "--subject", "subjects", metavar="[TOPIC=]SUBJECT", multiple=True, envvar=ENVIRONMENT, help=OPTION_HELP
)
@click.option(
    "--follow",
    metavar="TOPIC=PATH",
    multiple=True,
    help="Read a growing file with one JSON event on each line, also after its rotation. Repeatable.",
)
@click.option(
    "--lateness-ms",
    type=click.IntRange(min=0),
    default=60_000,
    show_default=True,
    help="Largest age of an event when it is sent; an older event reopens its audit window.",
)
@click.option(
    "--report-interval-ms",
    type=click.IntRange(min=10),
    default=10_000,
    show_default=True,
    help="Interval of reports to the audit.",
)
@click.option(
    "--adopt-copy",
    is_flag=True,
    help="Only prepare a copied spool: the next agent sends its waiting events, perhaps again.",
)
@door_options
def agent(
    server: str | None,
    subjects: Sequence[str],
    follow: Sequence[str],
    certificate: str,
    key: str,
    adopt_copy: bool,
    **named: Any,
) -> None:
    """Accept events over HTTP and from files, and produce them on behalf of services in any language.

    Example: millrace agent --cluster dc1 --bootstrap 127.0.0.1:9192 --registry http://127.0.0.1:8081
    --service shop --spool /var/lib/millrace-agent
    """
    from millrace_agent.agent import Agent, AgentConfig
    from millrace_agent.spool import Spool

    start_logging()
    hush_requests()
    files = {Path(path): topic for topic, path in _pairs(follow, "--follow TOPIC=PATH")}
    config = AgentConfig(
        server=server or socket.gethostname(),
        subjects=Subjects.of_environment(subjects),
        follow=files,
        tls=tls_of(certificate, key),
        **named,
    )
    if adopt_copy:
        with closing(Spool(config.spool, config.spool_bytes)) as spool:
            spool.adopt()
            say(f"{spool.events} events wait: start the agent without --adopt-copy to send them")
        return
    with Agent(config) as running:
        running.serve()


def _pairs(words: Sequence[str], form: str) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in words]
    for name, _, value in pairs:
        if not name or not value:
            raise MillraceError(f"{name or value!r} is not of the form {form}")
    return [(name, value) for name, _, value in pairs]
