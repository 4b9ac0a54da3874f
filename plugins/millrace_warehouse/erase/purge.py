"""Deletes at once, whatever their age, the files that are named only by replaced editions and old snapshots.

Values of erased rows remain in the data files of earlier editions, in the bounds that `entries.avro` and the
table's manifests state of these files, and in compacted files. Their paths are first written to `expired/`.
Then a commit without rows leaves one snapshot, which makes every commit that began earlier fail. Then the
files are deleted; a query that began earlier fails. A file that another run may still use stays and is
listed, with the time from which it may be deleted. `millrace expire`, or the same erasure run again, deletes
it then. A file of a newest edition holds no erased row, and may be the only copy of its rows: it stays, and
`millrace expire` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import Erasure, condition_path, taking_bytes
from millrace_warehouse.history.expired import Expired, expired_entries
from millrace_warehouse.history.manifest import LoadManifest, PreviousPublication, encode
from millrace_warehouse.history.rewritten import LIST
from millrace_warehouse.history.stored import ENTRIES, ERASED, SEQUENCES
from millrace_warehouse.publish import contents
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.committer import TableChange, commit
from millrace_warehouse.publish.expire import METADATA_S, STALE_S
from millrace_warehouse.publish.live import Live
from millrace_warehouse.publish.table import find_table, make_table
from millrace_warehouse.races import Conflict, retried
from millrace_warehouse.storage import Listed

_STAYS = {SEQUENCES, ERASED, LIST}
"""Files that hold numbers and hashes only, and no values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A file that may still hold values of erased rows."""

    what: str
    until: str | None
    """Time from which the file may be deleted; None when a person must decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Files that were deleted, and files that stay."""

    files: int
    bytes: int
    left: Sequence[Left]


def purge(context: Context, topic: layout.Topic, erasure: Erasure) -> Purged:
    """Delete every file that only replaced editions and old snapshots of the table name."""
    replaced = {*_replaced(topic)}
    old = {path: file for path, file in _files(topic) if path in replaced}
    table = retried(
        lambda: find_table(context.catalog, topic.name) or make_table(context.catalog, topic),
        f"old snapshots of {topic} stay",
        "check its catalog, then run again",
    )
    Live(context, topic).follow()  # its head names the editions that the newest publication names
    named_before = _unneeded(topic, table)
    old |= {path: file for path, file in _files(topic) if path in named_before}
    table = _only_head(context, topic.name, table)
    context.progress("snapshots forgotten")
    named = contents.named_files(table, topic.name)
    unpublished = replaced & named  # by a re-load that came after the newest publication
    named |= {f"{path.rpartition('/')[0]}/{ENTRIES}" for path in unpublished}  # branch `live` needs these
    gone = {path: file for path, file in old.items() if path not in named and _may_be_deleted(path)}
    _list_expired(context, topic, [path for path in gone if path.startswith("rows/")])
    context.progress("written down")
    count = Count(context.progress, "files deleted", len(gone))
    for path in gone:
        context.storage.delete(f"{topic}/{path}")
        context.progress("deleted")
        count.add(size=gone[path].bytes)
    left = [*_left(topic, table, named, len(unpublished)), *rejected_left(topic), *_condition(topic, erasure)]
    return Purged(files=len(gone), bytes=sum(file.bytes for file in gone.values()), left=left)


def _may_be_deleted(path: str) -> bool:
    return path.rpartition("/")[2] not in _STAYS and not path.endswith(".json")


def _files(topic: layout.Topic) -> Iterator[tuple[str, Listed]]:
    """Yield every file that may hold values, by its path from the topic's folder."""
    for folder in ("rows", "compacted", "table/metadata"):
        yield from topic.files(folder).items()


def _replaced(topic: layout.Topic) -> Iterator[str]:
    """Yield the files that only replaced editions name, and not the newest edition."""
    for load, numbers in layout.editions_of(topic).items():
        editions = [layout.read_edition(topic, load, each) for each in (1, *numbers)]
        newest = {file.path for file in (*editions[-1].files, *editions[-1].aside_files)}
        for edition in editions[:-1]:
            beside = [edition.entries] if edition.entries is not None else []
            for file in (*edition.files, *edition.aside_files, *beside):
                if file.path not in newest:
                    yield file.path


def _unneeded(topic: layout.Topic, table: Table) -> set[str]:
    """Return the files that a snapshot has named, and that neither a load's newest edition nor a load after
    the newest one may need.
    """
    newest, known = layout.require_load(topic).load, _known_rows(topic)
    return {
        path
        for path in _named_ever(table, topic.name) - known
        if (layout.attempted(path.split("/")[1]) or (0, 0))[0] <= newest
    }


def _named_ever(table: Table, topic: str) -> set[str]:
    """Return the files that a snapshot names now, or named in a kept version of the metadata."""
    named = contents.named_files(table, topic)
    for entry in table.metadata.metadata_log:
        try:
            metadata = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (OSError, ValueError):  # missing: the files that it named are left, and listed
            continue
        version = Table(table.name(), metadata, entry.metadata_file, table.io, table.catalog)
        for snapshot in metadata.snapshots:
            path = contents.path_in_topic(snapshot.manifest_list, topic)
            if path is None or path in named:
                continue
            try:
                manifests = snapshot.manifests(version.io)
            except OSError:
                continue
            named.add(path)
            for manifest in manifests:
                named |= _in_manifest(version, topic, manifest, named)
    return named


def _in_manifest(table: Table, topic: str, manifest: object, known: set[str]) -> set[str]:
    path = contents.path_in_topic(manifest.manifest_path, topic)  # type: ignore[attr-defined]
    if path is None or path in known:
        return set()
    try:
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)  # type: ignore[attr-defined]
    except OSError:
        return set()
    paths = (contents.path_in_topic(entry.data_file.file_path, topic) for entry in entries)
    return {path, *(each for each in paths if each is not None)}


def _only_head(context: Context, topic: str, table: Table) -> Table:
    """Commit a table of one snapshot, and return it. Commits that began earlier now fail."""
    before = table.current_snapshot()

    def attempt() -> Table:
        now = find_table(context.catalog, topic)
        if now is None:
            raise MillraceError(
                f"the table of {topic} was dropped meanwhile: check its catalog, then run again"
            )
        heads = {ref.snapshot_id for ref in now.metadata.refs.values()}
        if now.current_snapshot() != before and {s.snapshot_id for s in now.metadata.snapshots} <= heads:
            return now
        return commit(now, TableChange(head_only=True))

    return retried(attempt, f"old snapshots of {topic} stay", "check its catalog, then run again")


def _list_expired(context: Context, topic: layout.Topic, paths: Sequence[str]) -> None:
    """List the files to be deleted in `expired/`: `verify` and the warehouse's reader need them."""

    def attempt() -> None:
        entries = list(expired_entries(topic))
        fresh = sorted({*paths} - {path for entry in entries for path in entry.files})
        if not fresh:
            return
        entry = Expired(
            number=entries[-1].number + 1 if entries else 1,
            created=datetime.fromtimestamp(context.clock(), UTC).isoformat(timespec="seconds"),
            publication=PreviousPublication(path="", sha256=""),
            files=fresh,
        )
        path = layout.expired_path(topic.name, entry.number)
        if not context.storage.create(path, encode(entry)):
            raise Conflict(f"another run has written {path}")

    retried(attempt, f"old files of {topic} stay", "run again when other runs that expire have ended")


def _left(topic: layout.Topic, table: Table, named: set[str], unpublished: int) -> Iterator[Left]:
    """Yield files of lost attempts that may still run, of replaced editions that the table names, and
    snapshots that other branches or tags keep.
    """
    known = _known_rows(topic)
    waits: dict[str, list[float]] = {}
    for path, file in _files(topic):
        if path in named or path in known or not _may_be_deleted(path):
            continue
        kind = path.partition("/")[0]
        waits.setdefault(kind, []).append(file.modified + (METADATA_S if kind == "table" else STALE_S))
    for kind, times in sorted(waits.items()):
        until = datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")
        yield Left(what=f"{len(times)} files in {topic}/{kind}/ of attempts that lost", until=until)
    if unpublished:
        yield Left(
            what=f"{unpublished} files of replaced editions in {topic}/rows/ that the table still names: run"
            f" `millrace publish {topic}`, drop branches and tags of others, then run the same erasure again",
            until=None,
        )
    for name, ref in sorted(table.metadata.refs.items()):
        if name not in (MAIN_BRANCH, LIVE):
            yield Left(
                what=f"{ref.snapshot_ref_type} {name} of the table: snapshot {ref.snapshot_id}", until=None
            )


def _known_rows(topic: layout.Topic) -> set[str]:
    """Return the files of the newest edition of every load."""
    known: set[str] = set()
    for manifest in _newest_manifests(topic):
        beside = [manifest.entries] if manifest.entries is not None else []
        known |= {file.path for file in (*manifest.files, *manifest.aside_files, *beside)}
    return known


def _newest_manifests(topic: layout.Topic) -> Iterator[LoadManifest]:
    editions = layout.newest_editions(topic)
    for first in layout.loads_after(topic, 0):
        edition = editions.get(first.load, 1)
        yield first if edition == 1 else layout.read_edition(topic, first.load, edition)


def rejected_left(topic: layout.Topic) -> Iterator[Left]:
    """Yield messages without rows that have bytes or keys: whether the condition matches is unknown."""
    takers = taking_bytes(topic)
    whole = [each for each in _newest_manifests(topic) if takers.isdisjoint(each.erasures)]
    records = {manifest.load: manifest.rejected for manifest in whole if manifest.rejected}
    tombstones = {manifest.load: manifest.tombstones for manifest in whole if manifest.tombstones}
    if tombstones:
        yield Left(
            what=f"{sum(tombstones.values()):,} tombstones with their keys in"
            f" {topic}/rows/*/tombstones-*.parquet of load {', '.join(map(str, tombstones))}: conditions"
            " apply to rows only, and they never expire. Erase with --rejected and another --id: this takes"
            " all their keys out.",
            until=None,
        )
    loads = ", ".join(map(str, records))
    if records:
        yield Left(
            what=f"{sum(records.values()):,} records that could not be decoded, with their bytes, in"
            f" {topic}/rows/*/rejected-*.parquet of load {loads}: it is not known whether they match, and"
            " they never expire. Erase with --rejected and another --id: this takes the bytes of all of them"
            " out. To keep those that do not match, register what they lack and run `millrace reload`"
            " first.",
            until=None,
        )


def _condition(topic: layout.Topic, erasure: Erasure) -> Iterator[Left]:
    path = condition_path(topic.name, erasure.id)
    if topic.storage.files(path):
        yield Left(what=f"the condition itself, {path}", until=erasure.in_force_until)
