"""`millrace init`: create the first files of an event type, of its DAG and of a deployment.

No existing file is overwritten. Only `millrace.toml` and `topics.toml` are changed, by one entry each, and
only if nothing else in them changes.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from millrace.client.cluster_client import ClusterClient
from millrace.client.samples import newest_values
from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.installation import shipped
from millrace.printing import say
from millrace.topic_names import check_topic_name, table_name
from millrace.topics_file import VARIABLE, read_policies
from millrace_demo.draft import draft, record_name
from millrace_registry.directory import AUDIT_HEADER

DEPLOYMENT = "millrace.toml"
ENVIRONMENT = "airflow.env"
PARTITIONS = 2
SAMPLED = 10_000
"""Most messages from which a schema is drafted."""
TOPICS = "topics.toml"
REGISTRY = "http://127.0.0.1:8081"
"""Address at which `millrace up` and `millrace registry` serve the registry unless told otherwise."""
REGISTRY_VARIABLE = "MILLRACE_REGISTRY"
_HEADER = {
    "name": "header",
    "doc": "Filled in by the producer; every event starts with it, and the audit reads nothing else.",
    "type": AUDIT_HEADER,
}
_PRODUCER = '''\
"""Sends events of {name} that happened an hour ago: python {file} CLUSTER BOOTSTRAP [REGISTRY]"""

import os
import sys
import time

from millrace_audit import AuditedProducer

cluster, bootstrap, *registry = sys.argv[1:]
registry = registry[0] if registry else os.environ.get("MILLRACE_REGISTRY", "http://127.0.0.1:8081")
an_hour_ago = int(time.time() * 1000) - 3_600_000  # so its hour is over and can be proven now
with AuditedProducer(
    bootstrap, registry, cluster=cluster, server=f"{{cluster}}-host-1", service="{service}"
) as producer:
    for number in range(1000):
        producer.send("{name}", None, {{"id": number, "note": "the first ones"}}, time_ms=an_hour_ago)
print(f"1000 events are in {{cluster}}")
'''

_folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="this one",
    help="Folder in which the files are created.",
)
_registry_option = click.option(
    "--registry",
    metavar="URL",
    help=f"The registry in the printed commands; default: {REGISTRY_VARIABLE}, else {REGISTRY}.",
)


@click.group(cls=CommandGroup)
def init() -> None:
    """Create the first files of an event type, a DAG or a deployment.

    Example: millrace init event OrderPlaced
    """


@init.command()
@click.argument("name")
@_registry_option
@_folder_option
def event(name: str, registry: str | None, folder: Path) -> None:
    """Create the schema of event NAME and a producer of it; NAME is also the topic.

    The schema is schemas/NAME.avsc, with the audit's header and two fields to replace. The topic is added to
    a deployment in millrace.toml, to its mirror if that lists topics, and to topics.toml. Then the next
    commands are printed.

    Example: millrace init event OrderPlaced
    """
    check_topic_name(name)
    service = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[.-]+", "_", name).lower()
    _check_table(folder / "schemas", name)
    schema = {
        "type": "record",
        "name": record_name(name),
        "namespace": "example",
        "doc": f"What happened when there is a {name}.",
        "fields": [
            _HEADER,
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    producer = folder / f"{service}.py"
    _create(folder / "schemas" / f"{name}.avsc", json.dumps(schema, indent=2) + "\n")
    _create(producer, _PRODUCER.format(name=name, file=producer.name, service=service))
    bootstraps: Mapping[str, str] = {"dc1": "127.0.0.1:9192", "dc2": "127.0.0.1:9292"}
    if (deployment := folder / DEPLOYMENT).exists():
        bootstraps = _add_to_deployment(deployment, name)
    if (topics := folder / TOPICS).exists():
        _add_to_topics(topics, name)
    say(f"Edit its fields in {folder / 'schemas' / name}.avsc. Then, while `millrace up` runs:")
    say(f"  millrace schemas apply {folder / 'schemas'}{_registry_words(registry)}")
    create = [
        f"  millrace topics create {name} --partitions {PARTITIONS} --bootstrap {bootstrap}"
        for bootstrap in bootstraps.values()
    ]
    send = [
        f"  python {producer} {cluster} {bootstrap}{f' {registry}' if registry else ''}"
        for cluster, bootstrap in bootstraps.items()
    ]
    if deployment.exists():
        send.append("`millrace up` makes the topic when it starts. Where it runs already, first:")
        lines = send + create
    else:
        lines = create + send
    for line in lines:
        say(line)


def _check_table(schemas: Path, topic: str) -> None:
    """Refuse a topic whose table would be that of another schema's topic."""
    for file in sorted(schemas.glob("*.avsc")):
        if file.stem != topic and table_name(file.stem) == table_name(topic):
            raise MillraceError(
                f"topic {topic} would share the table millrace.{table_name(topic)} with {file}: choose"
                " another name"
            )


@init.command()
@click.argument("topic")
@click.option(
    "--from-topic", is_flag=True, required=True, help="Draft the schema from the topic's newest messages."
)
@click.option(
    "--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of a cluster that has the topic."
)
@_registry_option
@_folder_option
def schema(topic: str, from_topic: bool, bootstrap: str, registry: str | None, folder: Path) -> None:
    """Draft the schema of JSON topic TOPIC from up to 10,000 of its newest messages.

    The schema is schemas/TOPIC.avsc; nothing is registered. The guesses and the next commands are printed.

    Example: millrace init schema shop.orders.v1 --from-topic --bootstrap 127.0.0.1:9392
    """
    check_topic_name(topic)
    with ClusterClient(bootstrap) as client:
        drafted = draft(topic, newest_values(client, topic, SAMPLED))
    if not drafted.objects:
        raise MillraceError(
            f"the newest messages of {topic} hold no JSON object ({drafted.others} other messages): write a"
            ' schema by hand, or load the topic with format = "bytes"'
        )
    file = folder / "schemas" / f"{topic}.avsc"
    _create(file, json.dumps(drafted.schema, indent=2, ensure_ascii=False) + "\n")
    others = [f"{drafted.others:,} messages are no JSON objects"] if drafted.others else []
    notes = [*drafted.notes, *others]
    say(f"The schema is a guess from {drafted.objects:,} JSON objects{':' if notes else '.'}")
    for note in notes:
        say(f"  {note}")
    say(f"Correct the file. Add the topic to the file of topics, which {VARIABLE} names:")
    say(f"  [{_key(topic)}]")
    say('  format = "json"')
    say("  # time = FIELD, a timestamp, if rows belong into the hour of that field and not of the record")
    say("Then register the schema, and load the topic from the offline cluster:")
    option = _registry_words(registry)
    say(f"  millrace schemas apply {folder / 'schemas'}{option}")
    say(f"  millrace load {topic} --warehouse FOLDER --bootstrap HOST:PORT{option}")


def _registry_words(given: str | None) -> str:
    """Return the option that names the registry in a printed command.

    The commands read the variable themselves, so the option is left out where that is set.
    """
    if given is None and os.environ.get(REGISTRY_VARIABLE):
        return ""
    return f" --registry {given or REGISTRY}"


@init.command()
@_folder_option
def dag(folder: Path) -> None:
    """Copy the DAGs of the warehouse, and create the environment in which Airflow runs them.

    The topics come from the schemas in the folder: create the first schema with `millrace init event`.

    Example: millrace init dag --folder pipeline
    """
    topics = sorted(file.stem for file in (folder / "schemas").glob("*.avsc"))
    if not topics:
        raise MillraceError(
            f"{folder / 'schemas'} holds no schema: make one with `millrace init event OrderPlaced`"
        )
    variables = {VARIABLE: folder / TOPICS, "MILLRACE_SCHEMAS": folder / "schemas"}
    _create(folder / TOPICS, "".join(map(_table, topics)))
    _create(folder / ENVIRONMENT, "".join(f"{name}={at.absolute()}\n" for name, at in variables.items()))
    for file in sorted(shipped("dags").glob("*.py")):
        _create(folder / "dags" / file.name, file.read_text())
    say(f"Set what {folder / ENVIRONMENT} says for Airflow, and put its dags folder where Airflow looks.")


@init.command()
@_folder_option
def deployment(folder: Path) -> None:
    """Create millrace.toml: two datacenters, and the offline one, which mirrors every topic, on this machine.

    Example: millrace init deployment --folder pipeline
    """
    lines = []
    for line in shipped("deploy/local.toml").read_text().splitlines(keepends=True):
        if line.startswith("batch_topics"):
            continue
        lines.append("topics = {}\n" if line.startswith("topics = {") else line)
    lines[0] = (
        "# Two datacenters and the offline one on this machine: `millrace up millrace.toml` runs them.\n"
    )
    _create(folder / DEPLOYMENT, "".join(lines))
    say(f"Start it with `millrace up {folder / DEPLOYMENT}`.")


def _create(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise MillraceError(f"{file} exists already: move it away, or choose another name") from None
    except OSError as error:
        raise MillraceError(f"{file} cannot be made: {error.strerror}") from None
    say(f"made {file}")


def _add_to_deployment(file: Path, topic: str) -> Mapping[str, str]:
    """Add the topic to every cluster to which producers produce.

    Return these clusters, each with one broker.
    """
    text = file.read_text()
    try:
        before = tomllib.loads(text)
        clusters: Mapping[str, Any] = before["clusters"]
        origins = {name: cluster for name, cluster in clusters.items() if "mirror" not in cluster}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise MillraceError(f"{file} is no deployment of `millrace up`: {error}") from None
    mirrors = {f"clusters.{name}.mirror": one["mirror"] for name, one in clusters.items() if "mirror" in one}
    entry = f"{_key(topic)} = {PARTITIONS}"
    lines, section = text.splitlines(keepends=True), ""
    for number, line in enumerate(lines):
        if line.startswith("["):
            section = line.strip().strip("[]")
        elif (name := section.removeprefix("clusters.")) in origins:
            if topic in origins[name].get("topics", {}):
                continue
            line = re.sub(r"^(topics = \{)\s*(?=\})", rf"\g<1> {entry} ", line)
            lines[number] = re.sub(
                rf"^(topics = \{{ )(?!{re.escape(entry)} )(?=\S)", rf"\g<1>{entry}, ", line
            )
        elif line.startswith("topics = [") and not {"*", topic} & {
            *mirrors.get(section, {}).get("topics", "*")
        }:
            lines[number] = line.replace("[", f'["{topic}", ', 1)
    changed = "".join(lines)
    # The changed text must have the topic everywhere: a file in another style stays as it is.
    after = tomllib.loads(changed)["clusters"]
    if all(topic in after[name].get("topics", {}) for name in origins):
        file.write_text(changed)
        say(f"added the topic to {file}")
    else:
        say(f"add {entry} to the `topics` of {', '.join(origins)} in {file} by hand")
    return {
        name: next(iter(cluster.get("brokers", ())), cluster.get("bootstrap", ""))
        for name, cluster in origins.items()
    }


def _add_to_topics(file: Path, topic: str) -> None:
    if topic not in [*read_policies(file)]:  # a task of Airflow has a topic that the file names
        with file.open("a") as topics:
            topics.write(_table(topic))
        say(f"added the topic to {file}")


def _table(topic: str) -> str:
    """Return the topic's table in a file of topics."""
    return f"[{_key(topic)}]\n"


def _key(topic: str) -> str:
    """Return the topic as a key of TOML."""
    return f'"{topic}"' if "." in topic else topic
