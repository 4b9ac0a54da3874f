"""Proof that a warehouse is what was loaded and published: every manifest, every byte, every row.

There are three separate proofs. History: the chain, the laws, the ledger, and the SHA-256 of every file.
Publications: a replay of the loads' manifests gives the state in each publication's manifest. The table: its
rows by load and hour, counted in its present files. Reads with pyarrow and pyiceberg alone. If a broker is
named, it is asked only for its offsets. A problem is one line. A note is a defect that the next run corrects
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_warehouse.context import Progress, quiet
from millrace_warehouse.history import layout
from millrace_warehouse.publish.branch_commit import LIVE, head_of
from millrace_warehouse.publish.live import is_on, wrong_files
from millrace_warehouse.publish.table import PATH, find_table
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.verify.check import Check, TopicReport
from millrace_warehouse.verify.files import check_files
from millrace_warehouse.verify.history import History, check_history
from millrace_warehouse.verify.hours import check_hours
from millrace_warehouse.verify.layouts import check_layouts
from millrace_warehouse.verify.log import check_log
from millrace_warehouse.verify.publications import Replay, check_publications
from millrace_warehouse.verify.rows import check_erased, check_others, check_rows
from millrace_warehouse.verify.table import Head, check_table
from millrace_warehouse.verify.values import check_values

CHECKS = 3
"""Most checks of a topic while other runs change the topic."""
WAITING = timedelta(days=1)
"""Age at which the report notes rows that are loaded and not published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRun:
    """Settings of one verification. The command builds it."""

    storage: Storage
    catalog: Catalog | None
    """Iceberg catalog of the tables. With None, only history and the publications' manifests are checked."""
    client: ClusterClient | None = None
    """Also compare with the logs of this cluster."""
    rows: bool = False
    """Also read every row: offsets, sequence numbers, hours, and the values of copied rows."""
    progress: Progress = quiet


def verify(run: VerifyRun, topic: str | None = None) -> list[TopicReport]:
    """Check every topic of a warehouse, or one topic. Raise MillraceError when there is none."""
    names = run.storage.names("")
    _refuse_others(run.storage, names)
    topics = [name for name in names if _is_topic(run.storage, name) and topic in (None, name)]
    if not topics:
        raise MillraceError(
            f"nothing of {topic or 'any topic'} in {run.storage.root}: check the path and the topic"
        )
    reports = [_verified(run, layout.Topic(run.storage, name)) for name in topics]
    for name in names if topic is None else ():
        if name not in topics and not name.startswith((".", "_", layout.CATALOG)):
            note = f"{name} is not a topic: it holds none of Millrace's files"
            reports.append(TopicReport(name, notes=[note]))
    return reports


def _is_topic(storage: Storage, name: str) -> bool:
    names = storage.names(name)
    # A topic that version 0.1 loaded is refused with its name, not skipped.
    return bool({"loads", "ledger"}.intersection(names)) or any(
        each.startswith(layout.OLD_LOAD) for each in names
    )


def _refuse_others(storage: Storage, names: Sequence[str]) -> None:
    """Raise MillraceError for a broker's folder, a log inside it, or one topic's folder of a warehouse."""
    if {"loads", "ledger"} <= {*names}:
        raise MillraceError(
            f"{storage.root} is one topic of a warehouse: name the folder above it, the topic with --topic"
        )
    if "owner.json" in names or any(name.endswith(".log") for name in names):
        raise MillraceError(
            f"{storage.root} is a broker's log directory, not a warehouse: check it with `millrace log"
            " verify`"
        )


def _verified(run: VerifyRun, topic: layout.Topic) -> TopicReport:
    """Return the report of one topic. Check again if there are problems and other runs changed it."""
    for _ in range(CHECKS - 1):
        before = _version(run, topic)
        report = _verify_topic(run, topic)
        if not report.problems or _version(run, topic) == before:
            return report
    return _verify_topic(run, topic)


def _version(run: VerifyRun, topic: layout.Topic) -> object:
    """Return a value that changes with each load, edition, publication and compaction."""
    try:
        table = find_table(run.catalog, topic.name) if run.catalog is not None else None
    except MillraceError:
        table = None
    made = [len(topic.recorded(folder)) for folder in (layout.Folder.LOADS, layout.Folder.EDITIONS)]
    return made, (head_of(table, MAIN_BRANCH), table.properties.get(PATH)) if table is not None else None


def _verify_topic(run: VerifyRun, topic: layout.Topic) -> TopicReport:
    check = Check(topic, TopicReport(topic.name), run.progress)
    layout.check_topic(topic)
    # In this order: the table follows publications in the ledger, and history has the loads that it follows.
    publications = check.recorded(layout.Folder.PUBLICATIONS)
    head = _head(check, run.catalog, len(publications)) if run.catalog is not None else None
    history = check_history(check)
    path = head.table.properties.get(PATH) if head is not None else None
    replay = check_publications(check, history, publications, path)
    checked = check_files(check, history, replay, head.paths(topic.name) if head is not None else None)
    if head is not None and replay is not None:
        check_table(check, head, replay, checked.whole)
        if run.catalog is not None:
            check_hours(check, run.catalog, replay.publications)
    if head is not None:
        _check_live(check, head.table)
    if run.rows:
        check_rows(check, history, checked.whole)
        if head is not None:
            check_others(check, head, history, checked.whole)
            check_layouts(check, head)
            if replay is not None:
                check_values(check, head, history, replay, checked.whole)
        check_erased(check, head, history, checked.whole)
    if checked.unproven:
        check.note(
            f"{topic}: the files of {checked.unproven} published rows are gone, compacted or expired by now:"
            " only its table, with a catalog, proves that the rows are there"
        )
    _note_waiting(check, history, replay)
    newest = history.manifests.get((max(history.editions, default=0), 1))
    if run.client is not None and newest is not None:
        check_log(check, newest, run.client)
    return check.report


def _head(check: Check, catalog: Catalog, publications: int) -> Head | None:
    """Return the head of the topic's table, or None, with a problem, if it is missing or unreadable."""
    try:
        table: Table | None = find_table(catalog, check.topic.name)
        if table is not None:
            return Head.from_table(table)
    except MillraceError as error:
        check.problem(str(error))
    except Exception as error:  # whatever pyiceberg raises for missing or broken metadata
        check.problem(
            f"the metadata of {check.topic}'s table cannot be read: {type(error).__name__}: {error}"
        )
    else:
        if publications:
            check.problem(
                f"catalog {catalog.name} has no table of {check.topic}, and {publications} publications were"
                " made: it was dropped, or this is another catalog; to make it again run"
                f" `millrace publish {check.topic} --rebuild`"
            )
    return None


def _check_live(check: Check, table: Table) -> None:
    """Report files that branch `live` lacks, or has too much. A branch that is behind is noted."""
    if not is_on(table):
        return
    try:
        wrong = wrong_files(check.topic, table)
    except MillraceError as error:
        check.note(f"whether branch {LIVE} shows every row is not known: {error}")
        return
    if wrong is None:
        check.note(f"{check.topic}: branch {LIVE} is behind until the next load or publication")
    else:
        check.problem(*(f"{'.'.join(table.name())}: {line}" for line in wrong))


def _note_waiting(check: Check, history: History, replay: Replay | None) -> None:
    """Note the hours with rows that were loaded more than a day ago and are not published."""
    if replay is None:
        return
    since = datetime.now(UTC) - WAITING
    old = {
        hour: sum(part.rows for part in parts.values())
        for hour, parts in replay.waiting.items()
        if any(
            datetime.fromisoformat(first.created) <= since
            for load in parts
            if (first := history.manifests.get((load, 1))) is not None  # else reported with history
        )
    }
    if old:
        hours = ", ".join(sorted(old)[:3]) + (", …" if len(old) > 3 else "")
        check.note(
            f"{check.topic}: {sum(old.values())} rows of {len(old)} hours wait for more than a day: {hours};"
            f" run `millrace publish {check.topic}`, --hour publishes one whatever its verdict"
        )
