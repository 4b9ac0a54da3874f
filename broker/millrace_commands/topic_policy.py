"""`millrace topics policy`: the settings of topics that hold, and where each is set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields

import click

from millrace.errors import ConfigError
from millrace.printing import json_option, print_json, print_rows
from millrace.topic_names import check_topic_name
from millrace.topics_file import NO_POLICY, VARIABLE, FilePolicies, read_policies
from millrace_registry.subjects import ENVIRONMENT, Subjects

DEFAULT = "default"


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--topics-file", metavar="FILE", default="", envvar=VARIABLE, help="File of topics, in TOML.")
@json_option()
def policy(topics: Sequence[str], topics_file: str, as_json: bool) -> None:
    """Show the settings of TOPICs from the file of topics, and where each is set.

    Without TOPICs, every topic of the file is shown. Options of running commands, such as the auditor's
    --carried, are not shown.

    Example: millrace topics policy shop.orders.v1 --topics-file topics.toml
    """
    if not topics and not topics_file:
        raise ConfigError(f"there is no file of topics: name topics, set {VARIABLE} or give --topics-file")
    policies = read_policies(topics_file) if topics_file else FilePolicies({}, {})
    words = os.environ.get(ENVIRONMENT, "").split()
    records = []
    for topic in topics or policies:
        check_topic_name(topic)
        settings = _settings(topic, policies, topics_file, words)
        for name, value, origin in settings:
            records.append({"topic": topic, "setting": name, "value": value, "set_by": origin})
    if as_json:
        print_json(records)
        return
    columns = ("topic", "setting", "value", "set by")
    print_rows(columns, [[_word(value) for value in record.values()] for record in records])


def _settings(
    topic: str, policies: FilePolicies, file: str, words: Sequence[str]
) -> Iterator[tuple[str, object, str]]:
    """Yield name, value and origin of a topic's settings, given the words of MILLRACE_SUBJECTS."""
    policy = policies.get(topic, NO_POLICY)
    for field in fields(policy):
        tables = (name for name, table in policies.tables(topic) if field.name in table)
        table = next(tables, None)
        value, origin = getattr(policy, field.name), DEFAULT if table is None else f"{file}: {table}"
        if field.name == "subject":
            value, origin = _subject(topic, policy.subject, origin, words)
        yield field.name, value, origin


def _subject(topic: str, in_file: str, file: str, words: Sequence[str]) -> tuple[str, str]:
    """Return a topic's subject, or the strategy that names it, and where it is set."""
    subjects = Subjects.parse(words)
    if topic in subjects.by_topic:
        return subjects.by_topic[topic], ENVIRONMENT
    if in_file:
        return in_file, file
    return str(subjects.strategy), ENVIRONMENT if words else DEFAULT


def _word(value: object) -> object:
    """Return a value as the file of topics writes it."""
    return str(value).lower() if isinstance(value, bool) else value
