"""`millrace audit-check`, for authors of producers in other languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from millrace.client.cluster_client import ClusterClient
from millrace.printing import json_option, print_json, print_rows, say
from millrace_audit.check.callbacks import CallbackOutcomes, read_outcomes
from millrace_audit.check.checking import check_topic
from millrace_audit.check.findings import Summary, Violation
from millrace_audit.commands.options import hush_requests
from millrace_registry.client import SchemaRegistryClient


@click.command("audit-check")
@click.argument("topic")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the cluster.")
@click.option(
    "--outcomes",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Outcomes that the application's callbacks received, one line of JSON for each event"
    ' (docs/audit-protocol.md): {"sequence": 7, "outcome": "acknowledged"}, or "failed".',
)
@click.option(
    "--registry",
    "url",
    envvar="MILLRACE_REGISTRY",
    metavar="URL",
    default="http://127.0.0.1:8081",
    show_default=True,
    help="The schema registry, needed only for messages that begin with a schema id.",
)
@json_option()
@click.pass_context
def audit_check(
    context: click.Context, topic: str, bootstrap: str, path: Path | None, url: str, as_json: bool
) -> None:
    """Check that a producer under development follows the audit's protocol (docs/audit-protocol.md).

    Reads TOPIC and the topic `audit` from their beginnings to their present ends. Run it when the producer
    has ended, with a new topic for each trial. Memory grows with the ranges of sequences and with instances
    and windows, not with events.

    Example: millrace audit-check orders --bootstrap 127.0.0.1:9092 --outcomes outcomes.jsonl
    """
    hush_requests()
    outcomes = CallbackOutcomes() if path is None else read_outcomes(path)
    with ClusterClient(bootstrap) as client, SchemaRegistryClient(url) as registry:
        summaries, violations = check_topic(client, registry, topic, outcomes)
    if as_json:
        found = {
            "instances": [asdict(one) for one in summaries],
            "violations": [v._asdict() for v in violations],
        }
        print_json({"topic": topic, **found})
    else:
        _print(topic, summaries, violations)
    context.exit(1 if violations else 0)


def _print(topic: str, summaries: Sequence[Summary], violations: Sequence[Violation]) -> None:
    for summary in summaries:
        fields = asdict(summary)
        number = fields.pop("instance")
        rows = [(name.replace("_", " "), _in_words(value)) for name, value in fields.items()]
        print_rows(["instance", str(number)], rows)
    for violation in violations:
        who = "" if violation.instance is None else f"instance {violation.instance}: "
        say(f"{who}{violation.text}")
    if not violations:
        say(f"{topic}: the producer follows the protocol")


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
