"""`millrace registry` runs the schema registry; `millrace schemas` registers a folder of schemas there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

import click

from millrace.client.cluster_client import ClusterClient
from millrace.config import parse_addresses
from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.logs import start_logging
from millrace.printing import print_json, print_rows, say
from millrace.service.access import AccessList
from millrace.service.options import door_options, tls_of
from millrace_registry import directory as folder
from millrace_registry import transfer
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.directory import Change
from millrace_registry.impact import with_retained
from millrace_registry.subjects import ENVIRONMENT, OPTION_HELP, Subjects

_SCHEMAS = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")
_PLAIN = click.option(
    "--plain",
    is_flag=True,
    help="Accept any Avro schema in a file of any name: without an audit header, and without a "
    "rule for names.",
)
_REGISTRY = click.option(
    "--registry",
    "url",
    metavar="URL",
    envvar="MILLRACE_REGISTRY",
    required=True,
    help="The registry, http://HOST:PORT.",
)
_SUBJECTS = click.option(
    "--subject", "words", metavar="[TOPIC=]SUBJECT", multiple=True, envvar=ENVIRONMENT, help=OPTION_HELP
)
_COLOURS = {"new": "green", "new version": "green", "unchanged": "dim"}


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="Address to serve on; port 0 takes a free port.",
)
@click.option(
    "--database-url",
    metavar="URL",
    envvar="MILLRACE_REGISTRY_DATABASE_URL",
    default="sqlite:///registry.db",
    show_default=True,
    help="sqlite:////PATH/FILE.db or postgresql://USER:PASSWORD@HOST/NAME.",
)
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Brokers whose topics the page at /ui shows beside each schema."
)
@click.option(
    "--zookeeper",
    envvar="MILLRACE_ZOOKEEPER",
    metavar="HOST:PORT",
    help="The aggregate cluster's ZooKeeper. It keeps the largest ids, so that no id is reused after an older"
    " copy of the database is restored.",
)
@door_options
def registry(
    listen: str,
    database_url: str,
    bootstrap: str | None,
    zookeeper: str | None,
    access_file: str,
    certificate: str,
    key: str,
) -> None:
    """Run the schema registry: Avro schemas by id, for every client of Confluent's REST interface.

    Example: millrace registry --listen 127.0.0.1:8081 --database-url sqlite:////var/lib/registry.db
    """
    from millrace.service.web import WebServer
    from millrace.zookeeper.session import Session
    from millrace_registry.app import create_app
    from millrace_registry.handed_out import HandedOut
    from millrace_registry.store import Store
    from millrace_registry.usage import Usage

    start_logging()
    if bootstrap is not None:
        parse_addresses(bootstrap, "--bootstrap")
    access = AccessList(access_file) if access_file else None
    tls = tls_of(certificate, key)
    with ExitStack() as opened:
        handed_out = None
        if zookeeper is not None:
            session = opened.enter_context(closing(Session.connect(zookeeper)))
            handed_out = HandedOut(session)
        store = opened.enter_context(closing(Store.open(database_url, handed_out)))
        usage = opened.enter_context(closing(Usage(bootstrap)))
        server = WebServer(create_app(store, access, usage), listen, "registry", tls)
        usage.start()
        server.serve_until_stopped()


@click.group(cls=CommandGroup)
def schemas() -> None:
    """Check, plan and apply a folder of .avsc files; export and import all contents of a registry.

    Example: millrace schemas plan schemas --registry http://127.0.0.1:8081
    """


@schemas.command()
@_SCHEMAS
@_PLAIN
@click.option("--against", "revision", metavar="REV", help="Also compare with this revision of git.")
@click.option(
    "--header",
    type=click.Choice(["value", "any"]),
    default="any",
    show_default=True,
    help="Where events have their audit header: `value` accepts no schema without it.",
)
@click.option(
    "--registry", "url", metavar="URL", help="Also ask this registry whether it would accept the schemas."
)
@_SUBJECTS
@_JSON
def check(
    directory: Path,
    plain: bool,
    revision: str | None,
    header: str,
    url: str | None,
    words: Sequence[str],
    as_json: bool,
) -> None:
    """Check every schema in DIR: its syntax, its name, its audit header, and a registry's answer.

    With --against, each schema must also be able to read data of its predecessor; removed files are listed.

    Example: millrace schemas check schemas --registry http://127.0.0.1:8081
    """
    if plain and header == "value":
        raise MillraceError("--plain and --header value contradict each other: give one")
    changes = [] if revision is None else folder.compare(directory, revision, plain=plain)
    if url is not None:
        with SchemaRegistryClient(url) as client:
            changes += folder.plan(directory, client, plain=plain, subjects=Subjects.of_environment(words))
    files = folder.check(directory, plain=plain)
    problems = {str(f.path): [f.problem] if f.problem else [] for f in files}
    notes: dict[str, list[str]] = {}
    if not plain:
        for name in [str(file.path) for file in files if file.lacks_header]:
            if header == "value":
                problems[name].append(folder.NO_HEADER)
            else:
                notes[name] = [folder.RECORD_HEADER_NOTE]
    for change in changes:
        reasons = problems.setdefault(change.file, [])
        reasons += [reason for reason in change.reasons if reason not in reasons]
        if change.state == "removed":
            notes[change.file] = ["removed; its subject stays in the registry until it is deleted there"]
        elif change.fields:
            notes[change.file] = [*notes.get(change.file, []), *change.fields]
    if as_json:
        rows = [{"file": f, "problems": found, "notes": notes.get(f, [])} for f, found in problems.items()]
        print_json(rows)
    else:
        for file, reasons in problems.items():
            say(f"{file}: {'; '.join([*reasons, *notes.get(file, [])]) or 'ok'}")
    bad = sum(bool(reasons) for reasons in problems.values())
    if bad:
        raise MillraceError(f"{bad} of {len(problems)} schemas cannot be used: correct the files named above")


@schemas.command()
@_SCHEMAS
@_PLAIN
@_REGISTRY
@_SUBJECTS
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="Also count the messages of this cluster that could not be read; list subjects missing in DIR.",
)
@_JSON
def plan(
    directory: Path, plain: bool, url: str, words: Sequence[str], bootstrap: str | None, as_json: bool
) -> None:
    """Show the result of registering the schemas in DIR, but change nothing.

    Exit 1 if a schema would be refused.

    Example: millrace schemas plan schemas --registry http://127.0.0.1:8081 --json
    """
    with SchemaRegistryClient(url) as client:
        changes = folder.plan(directory, client, plain=plain, subjects=Subjects.of_environment(words))
        if bootstrap is not None:
            with ClusterClient(bootstrap) as cluster:
                changes = with_retained(changes, cluster, client)
    _show(changes, as_json)
    bad = sum(bool(change.reasons) for change in changes)
    if bad:
        raise MillraceError(
            f"{bad} of {len(changes)} schemas would be refused by the registry: `apply` would register none"
        )


@schemas.command()
@_SCHEMAS
@_PLAIN
@_REGISTRY
@_SUBJECTS
@_JSON
def apply(directory: Path, plain: bool, url: str, words: Sequence[str], as_json: bool) -> None:
    """Register the schemas in DIR, or none of them if any would be refused. Safe to repeat.

    Example: millrace schemas apply schemas --registry http://127.0.0.1:8081
    """
    with SchemaRegistryClient(url) as client:
        changes = folder.apply(directory, client, plain=plain, subjects=Subjects.of_environment(words))
    _show(changes, as_json)


@schemas.command()
@_SCHEMAS
@_REGISTRY
def export(directory: Path, url: str) -> None:
    """Write all contents of a registry, including ids and deleted versions, into the new folder DIR.

    Example: millrace schemas export backup --registry http://127.0.0.1:8081
    """
    with SchemaRegistryClient(url) as client:
        contents = transfer.read_registry(client)
    transfer.write_folder(contents, directory)
    say(f"{len(contents.versions)} versions are in {directory}")


@schemas.command("import")
@click.argument("source", metavar="DIR|URL")
@_REGISTRY
@_JSON
def import_(source: str, url: str, as_json: bool) -> None:
    """Import an export's folder, or all of another registry, into a registry with the same schema ids.

    Example: millrace schemas import backup --registry http://127.0.0.1:8081
    """
    with SchemaRegistryClient(url) as client:
        if source.startswith(("http://", "https://")):
            with SchemaRegistryClient(source) as other:
                contents = transfer.read_registry(other)
        else:
            contents = transfer.read_folder(Path(source))
        transfers = transfer.write_registry(contents, client)
    if as_json:
        print_json([asdict(each) for each in transfers])
        return
    for state, count in Counter(each.state for each in transfers).items():
        say(f"{count} versions {state}")
    for each in transfers:
        if each.reason:
            say(f"{each.subject} version {each.version}: {each.reason}", err=True)
    say(f"subjects without a level of their own had the level {contents.level} there", err=True)


def _show(changes: Sequence[Change], as_json: bool) -> None:
    if as_json:
        print_json([change.as_json() for change in changes])
        return
    rows: list[list[object]] = []
    for change in changes:
        level = [f"level {change.level}"] if change.level is not None else []
        first, *lines = [*change.reasons, *change.fields, *level, *change.notes] or [""]
        state = (change.state, _COLOURS.get(change.state, "red"))
        rows.append([change.subject, state, change.version or "-", change.id or "-", first])
        rows += [["", "", None, None, line] for line in lines]
    print_rows(("subject", "change", "version", "id", "reasons and fields"), rows)
