"""`millrace init`: create the first files of an event type, of its DAG and of a deployment.

No existing file is overwritten. Only `millrace.toml` and `topics.toml` are changed, by one entry each, and
only if nothing else in them changes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from millrace.client.cluster_client import ClusterClient
from millrace.client.samples import newest_values
from millrace.config import load
from millrace.deployment_file import FILE, UpConfig
from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.installation import shipped
from millrace.printing import say
from millrace.topic_names import check_topic_name, table_name
from millrace.topics_file import VARIABLE, read_policies
from millrace_demo.draft import draft, record_name
from millrace_registry.directory import AUDIT_HEADER

ENVIRONMENT = "airflow.env"
CONNECTION = "AIRFLOW_CONN_MILLRACE_DEFAULT"
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

if len(sys.argv) < 3:
    sys.exit(__doc__)
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
    """Create the first files of an event, a schema, a DAG or a deployment.

    Example: millrace init event OrderPlaced
    """


@init.command()
@click.argument("name")
@_registry_option
@_folder_option
def event(name: str, registry: str | None, folder: Path) -> None:
    """Create a schema for the event NAME, and a producer that sends such events to the topic NAME.

    The schema is schemas/NAME.avsc, with the audit's header and two fields to replace. The topic is added to
    topics.toml. If there is a millrace.toml, the topic is added to its datacenters, and to its mirror if the
    mirror lists topics. Then the next commands are printed.

    Example: millrace init event OrderPlaced
    """
    check_topic_name(name)
    service = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[.-]+", "_", name).lower()
    _check_table(folder / "schemas", name)
    schema = {
        "type": "record",
        "name": record_name(name),
        "namespace": "example",
        "doc": f"TODO: say what one {name} means.",
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
    if (deployment := folder / FILE).exists():
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
        send.append("`millrace up` creates the topic when it starts. Where it runs already, first:")
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
    """Draft a schema for TOPIC, a topic of JSON messages, from up to 10,000 of its newest messages.

    The schema is schemas/TOPIC.avsc; nothing is registered. The guesses and the next commands are printed.

    Example: millrace init schema shop.orders.v1 --from-topic --bootstrap 127.0.0.1:9392
    """
    check_topic_name(topic)
    with ClusterClient(bootstrap) as client:
        drafted = draft(topic, newest_values(client, topic, SAMPLED))
    if not drafted.objects:
        if not drafted.others:
            raise MillraceError(f"{topic} has no messages yet: send one, then run the command again")
        raise MillraceError(
            f"no JSON object is among the newest {drafted.others:,} messages of {topic}: write a"
            ' schema by hand, or load the topic with format = "bytes"'
        )
    file = folder / "schemas" / f"{topic}.avsc"
    _create(file, json.dumps(drafted.schema, indent=2, ensure_ascii=False) + "\n")
    others = [f"{drafted.others:,} messages are not JSON objects"] if drafted.others else []
    notes = [*drafted.notes, *others]
    say(f"The schema is a guess from {drafted.objects:,} JSON objects{':' if notes else '.'}")
    for note in notes:
        say(f"  {note}")
    say(f"Correct the file. The file of topics ({VARIABLE}, or topics_file in {FILE}) needs these lines:")
    say(f"  [{_key(topic)}]")
    say('  format = "json"')
    say('  # time = "FIELD", a timestamp, if rows belong to the hour of that field and not of the record')
    say("Then register the schema, and load the topic from the offline cluster:")
    option = _registry_words(registry)
    say(f"  millrace schemas apply {folder / 'schemas'}{option}")
    addresses = "" if Path(FILE).exists() else f" --warehouse FOLDER --bootstrap HOST:PORT{option}"
    say(f"  millrace load {topic}{addresses}")


def _registry_words(given: str | None) -> str:
    """Return the option that names the registry in a printed command.

    The commands read the variable and the deployment file themselves, so the option is left out where they
    have one.
    """
    if given is None and (os.environ.get(REGISTRY_VARIABLE) or Path(FILE).exists()):
        return ""
    return f" --registry {given or REGISTRY}"


@init.command()
@_folder_option
def dag(folder: Path) -> None:
    """Copy the warehouse's DAGs, and create airflow.env, the environment in which Airflow runs them.

    The topics come from the schemas in the folder: create the first schema with `millrace init event`. If
    millrace.toml describes a deployment without security, airflow.env also defines Airflow's connection
    `millrace_default` to it.

    Example: millrace init dag --folder pipeline
    """
    topics = sorted(file.stem for file in (folder / "schemas").glob("*.avsc"))
    if not topics:
        raise MillraceError(
            f"{folder / 'schemas'} holds no schema: make one with `millrace init event OrderPlaced`"
        )
    paths = {VARIABLE: TOPICS, "MILLRACE_SCHEMAS": "schemas", "AIRFLOW__CORE__DAGS_FOLDER": "dags"}
    variables = {name: str((folder / path).absolute()) for name, path in paths.items()}
    config = load(UpConfig, folder / FILE) if (folder / FILE).exists() else None
    if config is not None and not config.security:
        variables[CONNECTION] = json.dumps(_connection(config, folder))
    _create(folder / TOPICS, "".join(map(_table, topics)))
    _create(folder / ENVIRONMENT, "".join(f"{key}={shlex.quote(text)}\n" for key, text in variables.items()))
    for file in sorted(shipped("dags").glob("*.py")):
        _create(folder / "dags" / file.name, file.read_text())
    say(f"Start Airflow with the variables in {folder / ENVIRONMENT}, as docs/airflow-standalone.md does.")
    if CONNECTION not in variables:
        say("Then create the connection millrace_default of type Millrace.")


def _connection(deployment: UpConfig, folder: Path) -> Mapping[str, Any]:
    """Return Airflow's connection to a deployment."""
    origins = {name: at for name, at in deployment.bootstraps.items() if name != deployment.aggregate}
    addresses, warehouse = deployment.addresses, deployment.warehouse or "warehouse"
    return {
        "conn_type": "millrace",
        "host": deployment.bootstraps[deployment.aggregate],
        "extra": {
            "registry": addresses["--registry"],
            "auditor": addresses["--auditor"],
            "warehouse": warehouse if "://" in warehouse else str((folder / warehouse).absolute()),
            "origins": origins,
        },
    }


@init.command()
@_folder_option
def deployment(folder: Path) -> None:
    """Create millrace.toml for this machine: two datacenters, and an offline one that mirrors every topic.

    Example: millrace init deployment --folder pipeline
    """
    lines = []
    for line in shipped("deploy/local.toml").read_text().splitlines(keepends=True):
        if line.startswith("batch_topics"):
            continue
        lines.append("topics = {}\n" if line.startswith("topics = {") else line)
    lines[0] = "# Two datacenters and the offline one on this machine: `millrace up` runs them.\n"
    _create(folder / FILE, "".join(lines))
    there = "" if folder == Path() else f"cd {folder} && "
    say(f"Start it with `{there}millrace up`. Commands typed in its folder take their addresses from it.")


def _create(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise MillraceError(f"{file} exists already: move it away, or choose another name") from None
    except OSError as error:
        raise MillraceError(
            f"{file} cannot be created ({error.strerror}): give a --folder that can be written"
        ) from None
    say(f"created {file}")


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
