"""Deletes unneeded files: data files whose rows the table has elsewhere, strays, and old metadata.

A data file of a load is deleted when its hour is published from the load's newest edition, no snapshot of the
table names the file, and the load's rows of that hour were counted in the table. A file that `compact` or a
re-load wrote is deleted when no snapshot names it. Both kinds are first listed in `expired/`. A run that
finds them still unneeded after the readers' time deletes them. After a crash at any step the next run
continues. Manifests, rejected records and the files beside a manifest stay.

Files of an attempt that never became a load are deleted when its number is taken and a day has passed, so a
running load loses nothing. Asks neither brokers nor an auditor.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pyarrow as pa
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import old_conditions
from millrace_warehouse.history.expired import Expired, expired_entries, waiting_since
from millrace_warehouse.history.layout import Folder, Topic
from millrace_warehouse.history.manifest import LoadManifest, PreviousPublication, Publication, encode
from millrace_warehouse.history.rewritten import LIST
from millrace_warehouse.history.stored import ENTRIES, ERASED, SEQUENCES
from millrace_warehouse.publish import contents
from millrace_warehouse.publish.catalog import load_table
from millrace_warehouse.publish.committer import TableChange, commit, head_files
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.table import PATH, find_table, published_table, require_loads
from millrace_warehouse.races import Conflict
from millrace_warehouse.requests import Expire
from millrace_warehouse.storage import Listed
from millrace_warehouse.storage.interface import DRAFT

STALE_S = 24 * 3600.0
"""Age in seconds up to which files are left alone that a suspended run may own."""
METADATA_S = 3 * 24 * 3600.0
"""Age in seconds up to which the table's metadata is left alone: other programs commit as well."""
_RECORD = re.compile(r"(\d{10})-.+\.json")
_BESIDE = {ENTRIES, SEQUENCES, ERASED}
"""Files that stay in a folder without rejected records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """Files that a run deleted, or would delete."""

    topic: str
    data_files: int
    """Data files of loads whose rows are in the table or in a newer edition."""
    compacted_files: int
    """Files that `compact` or a re-load wrote and that no snapshot names."""
    metadata_files: int
    """Metadata files of the table that no snapshot names."""
    strays: int
    """Files of attempts that never became a load, an edition or a publication, and of interrupted writes."""
    plans: int
    bytes: int
    waiting: int
    """Data files and compacted files that are deleted once the readers' time has passed."""
    kept: Mapping[str, str]
    """Old load whose files stay -> reason."""


@dataclass(slots=True)
class _Unneeded:
    """Unneeded files of the topic, by their paths from the topic's folder."""

    data: dict[str, Listed] = field(default_factory=dict)
    compacted: dict[str, Listed] = field(default_factory=dict)
    strays: dict[str, Listed] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def expire_topic(context: Context, request: Expire) -> ExpireResult:
    """Delete old files that are not needed.

    Raise MillraceError when the table differs from its publication.
    """
    topic = Topic(context.storage, request.topic)
    newest = require_loads(context.catalog, topic)
    published = _Published.read(context, topic)
    rows, rewritten = (topic.files(kind) for kind in (Folder.ROWS, Folder.COMPACTED))
    if published is not None:
        published.check_files(rows.keys() | rewritten.keys())
    found = _Unneeded()
    _find_rows(context, request, topic, newest.load, published, found, rows)
    if found.strays:  # branch `live` may still show the tail of an attempt
        shown = published.named if published is not None else _named_unpublished(context, topic)
        found.strays = {path: file for path, file in found.strays.items() if path not in shown}
    metadata: dict[str, Listed] = {}
    if published is not None:
        found.compacted = dict(_old_compacted(context, published, rewritten))
        metadata = _old_metadata(context, request, "table/metadata", published.named)
        found.strays |= _lost_publications(context, topic, published.publication)
    data, compacted, waiting = _list_unneeded(context, request, found, published)
    if published is not None:
        if not request.dry_run and (data or compacted or _may_be_named(published.table, metadata)):
            named = _fence(context, published).named
            data = {path: file for path, file in data.items() if path not in named}
            compacted = {path: file for path, file in compacted.items() if path not in named}
            metadata = {path: file for path, file in metadata.items() if path not in named}
        metadata |= _old_hours(context, request)
    found.strays |= _old_drafts(context, topic)
    plans = _old_plans(context, request, topic)
    gone = {**data, **compacted, **metadata, **found.strays, **plans, **_old_conditions(context, topic)}
    count = Count(context.progress, "files deleted", len(gone))
    for path in gone if not request.dry_run else ():
        context.storage.delete(f"{topic}/{path}")
        context.progress("deleted")
        count.add(size=gone[path].bytes)
    return ExpireResult(
        topic=topic.name,
        data_files=len(data),
        compacted_files=len(compacted),
        metadata_files=len(metadata),
        strays=len(found.strays),
        plans=len(plans),
        bytes=sum(file.bytes for file in gone.values()),
        waiting=waiting,
        kept=found.kept,
    )


@dataclass(frozen=True)
class _Published:
    """The published table, maybe compacted since. It is checked before anything is deleted."""

    topic: Topic
    table: Table
    publication: Publication
    publication_path: str

    @classmethod
    def read(cls, context: Context, topic: Topic) -> _Published | None:
        table, publication = published_table(context.catalog, topic)
        if table is None or publication is None:
            return None
        return cls(topic, table, publication, table.properties[PATH])

    @cached_property
    def named(self) -> set[str]:
        """Paths of every file that a snapshot names, data and metadata."""
        return contents.named_files(self.table, self.topic.name)

    @cached_property
    def _files(self) -> Mapping[str, Sequence[TableFile]]:
        return head_files(self.table)

    def check_files(self, present: Collection[str]) -> None:
        """Raise MillraceError when a file of the table is missing: a file that seems unneeded may be the last
        with its rows.
        """
        files = (file.file_path for files in self._files.values() for file in files)
        paths = {contents.path_in_topic(uri, self.topic.name) for uri in files}
        if gone := sorted(path for path in paths if path is not None and path not in present):
            raise MillraceError(
                f"the table of {self.topic} names {len(gone)} files that are gone, such as {gone[0]}: its"
                " catalog is older than the warehouse, or a disk has lost them. Nothing was deleted; restore"
                f" them from a copy, or run `millrace publish {self.topic} --rebuild`"
            )

    @cached_property
    def _rows(self) -> dict[str, contents.RowsByLoad]:
        return {}

    def rows(self, hour: str, load: int) -> int:
        """Return the number of a load's rows of an hour in the table, counted in its files."""
        if hour not in self._rows:
            count = contents.RowsByLoad()
            for file in self._files.get(hour, ()):
                try:
                    count += contents.count_loads(self.table.io, file)
                except (pa.ArrowException, OSError) as error:
                    raise MillraceError(
                        f"{file.file_path} cannot be read ({error}): run `millrace verify`; nothing was"
                        " deleted"
                    ) from None
            self._rows[hour] = count
        return self._rows[hour][load]

    def waits(self, hour: str, load: int) -> bool:
        """Return True when the hour, or the load's rows of it, are not published."""
        return any(part.load == load for part in self.publication.unpublished.get(hour, ()))


def _named_unpublished(context: Context, topic: Topic) -> set[str]:
    """Return the paths of every file that a snapshot names of a table without a publication."""
    table = find_table(context.catalog, topic.name)
    return contents.named_files(table, topic.name) if table is not None else set()


def _find_rows(
    context: Context,
    request: Expire,
    topic: Topic,
    newest: int,
    published: _Published | None,
    found: _Unneeded,
    rows: Mapping[str, Listed],
) -> None:
    """Sort the files below `rows/` into needed files, unneeded files, and strays."""
    folders: dict[str, dict[str, Listed]] = defaultdict(dict)
    for path, file in rows.items():
        folders[path.split("/")[1]][path] = file
    editions = layout.newest_editions(topic)
    for folder, paths in sorted(folders.items()):
        load, edition = layout.attempted(folder) or (0, 0)
        edition_now = editions.get(load, 1)
        names = {path.rpartition("/")[2] for path in paths}
        if not 1 <= load <= newest or edition > edition_now or names <= _BESIDE:
            continue  # no attempt has won yet, or its data files were deleted before
        manifest = layout.read_edition(topic, load, edition)
        named = _named(manifest)
        if max(file.modified for file in paths.values()) <= context.clock() - STALE_S:
            found.strays |= {path: file for path, file in paths.items() if path not in named}
        if published is not None and manifest.attempt == folder[11:]:
            last = layout.read_edition(topic, load, edition_now)
            of_load = {path: file for path, file in paths.items() if path in named}
            _find_data(context, request, of_load, manifest, last, published, found)


def _named(manifest: LoadManifest) -> set[str]:
    beside = (manifest.entries, manifest.sequences_file, manifest.erased_sequences_file)
    files = [*manifest.files, *manifest.aside_files, *beside]
    return {file.path for file in files if file is not None}


def _find_data(
    context: Context,
    request: Expire,
    present: Mapping[str, Listed],
    manifest: LoadManifest,
    newest: LoadManifest,
    published: _Published,
    found: _Unneeded,
) -> None:
    """Return the unneeded data files of one edition."""
    if datetime.fromisoformat(newest.created).timestamp() > context.clock() - request.older_than_s:
        return
    through = published.publication.loads
    seen = through.editions.get(str(newest.load), 1) if newest.load <= through.load else 0
    for file in manifest.files:
        if file.path not in present or file.path in published.named:
            continue
        stays = None
        if seen != newest.edition:
            stays = f"the table lacks edition {newest.edition}: run `millrace publish {newest.topic}`"
        elif manifest.edition == newest.edition and published.waits(file.hour, newest.load):
            stays = f"{file.hour} waits: run `millrace publish {newest.topic} --hour {file.hour}`"
        elif manifest.edition == newest.edition:
            stays = _uncounted(file.hour, newest, published)
        if stays is None:
            found.data[file.path] = present[file.path]
        else:
            found.kept[layout.manifest_path(manifest)] = stays


def _uncounted(hour: str, manifest: LoadManifest, published: _Published) -> str | None:
    """Return why the table cannot replace the load's files of an hour, or None when it has all their rows."""
    rows, stated = published.rows(hour, manifest.load), manifest.rows_by_hour()[hour]
    if rows == stated:
        return None
    return f"the table has {rows} of its {stated} rows of {hour}: run `millrace verify`"


def _old_compacted(
    context: Context, published: _Published, rewritten: Mapping[str, Listed]
) -> Iterator[tuple[str, Listed]]:
    """Yield files that no load wrote and that no snapshot names, and lists without such files."""
    unnamed: dict[str, Listed] = {}
    used: set[str] = set()
    for path, file in rewritten.items():
        if path in published.named:
            used.add(path.rpartition("/")[0])
        elif file.modified <= context.clock() - STALE_S:
            unnamed[path] = file
        elif not path.endswith(f"/{LIST}"):
            used.add(path.rpartition("/")[0])
    for path, file in unnamed.items():
        folder, _, name = path.rpartition("/")
        if name != LIST or folder not in used:
            yield path, file


def _old_metadata(
    context: Context, request: Expire, folder: str, named: Collection[str]
) -> dict[str, Listed]:
    """Return the old files of a folder that no snapshot names, if the catalog keeps them in the warehouse."""
    before = context.clock() - max(METADATA_S, request.reader_grace_s)
    return {
        path: file
        for path, file in Topic(context.storage, request.topic).files(folder).items()
        if path not in named and file.modified <= before and not path.endswith("/version-hint.text")
    }


def _old_hours(context: Context, request: Expire) -> dict[str, Listed]:
    """Return metadata and data files that no snapshot of the table of hours names."""
    topic = request.topic
    hours = load_table(context.catalog, hours_identifier(topic))
    if hours is None:
        return {}
    old = _old_metadata(context, request, "hours", contents.named_files(hours, topic))
    if request.dry_run or not _may_be_named(hours, old):
        return old
    _commit_nothing(hours)
    fenced = load_table(context.catalog, hours_identifier(topic))
    if fenced is None or fenced.current_snapshot() == hours.current_snapshot():
        raise MillraceError(
            f"the table of hours of {topic} accepted no commit: check its catalog, then run again"
        )
    named = contents.named_files(fenced, topic)
    return {path: file for path, file in old.items() if path not in named}


def _may_be_named(table: Table, files: Mapping[str, Listed]) -> bool:
    """Return True if a delayed commit may still name one of the files.

    If the table's head is newer than every file, by more than clocks differ, the table refuses such a commit.
    """
    head = table.current_snapshot()
    since = head.timestamp_ms / 1000 - STALE_S if head is not None else 0.0
    return any(file.modified > since for file in files.values())


def _lost_publications(context: Context, topic: Topic, newest: Publication) -> dict[str, Listed]:
    """Return the manifests of failed publications, which neither the ledger nor the table names."""
    count = {*topic.recorded(Folder.PUBLICATIONS)}
    count.add(layout.publication_path(topic.name, newest.number, newest.attempt).rpartition("/")[2])
    lost: dict[str, Listed] = {}
    for path, file in topic.files(Folder.PUBLICATIONS).items():
        match = _RECORD.fullmatch(file.path)
        taken = match is not None and int(match[1]) <= newest.number
        if taken and file.path not in count and file.modified <= context.clock() - STALE_S:
            lost[path] = file
    return lost


def _old_drafts(context: Context, topic: Topic) -> dict[str, Listed]:
    """Return old drafts that a crash has left, from every folder whose files are created exclusively."""
    return {
        path: file
        for kind in Folder
        if kind not in (Folder.ROWS, Folder.COMPACTED, Folder.TABLE, Folder.HOURS)
        for path, file in topic.files(kind).items()
        if path.rpartition("/")[2].startswith(DRAFT) and file.modified <= context.clock() - STALE_S
    }


def _list_unneeded(
    context: Context, request: Expire, found: _Unneeded, published: _Published | None
) -> tuple[dict[str, Listed], dict[str, Listed], int]:
    """List newly unneeded files in `expired/`. Return the data files and compacted files to delete now, and
    the number of files that stay.
    """
    if published is None:
        return {}, {}, 0
    entries = list(expired_entries(published.topic))
    since = waiting_since(entries)
    named_again = sorted(since.keys() & published.named)
    for path in named_again:
        del since[path]
    created = datetime.fromtimestamp(context.clock(), UTC).isoformat(timespec="seconds")
    fresh = sorted((found.data.keys() | found.compacted.keys()) - since.keys())
    if fresh or named_again:
        entry = Expired(
            number=entries[-1].number + 1 if entries else 1,
            created=created,
            publication=PreviousPublication(
                path=published.publication_path, sha256=published.publication.sha256
            ),
            files=fresh,
            named_again=named_again,
        )
        since |= dict.fromkeys(fresh, created)
        if not request.dry_run:
            if not context.storage.create(layout.expired_path(request.topic, entry.number), encode(entry)):
                raise MillraceError(
                    f"another run expires {request.topic} at this moment: run again when it has ended"
                )
            context.progress("written down")
    before = context.clock() - request.reader_grace_s
    old = {
        path for path, since_time in since.items() if datetime.fromisoformat(since_time).timestamp() <= before
    }
    data = {path: file for path, file in found.data.items() if path in old}
    compacted = {path: file for path, file in found.compacted.items() if path in old}
    return data, compacted, len(found.data) + len(found.compacted) - len(data) - len(compacted)


def _fence(context: Context, published: _Published) -> _Published:
    """Make a commit without rows and return the table after it. Commits that began earlier now fail.

    A publication, a compaction, a re-load or a rebuild that was suspended for days could otherwise name files
    that are deleted now.
    """
    _commit_nothing(published.table)
    fenced = _Published.read(context, published.topic)
    if fenced is None or fenced.table.current_snapshot() == published.table.current_snapshot():
        raise MillraceError(
            f"the table of {published.topic} accepted no commit: check its catalog, then run again"
        )
    context.progress("fenced")
    return fenced


def _commit_nothing(table: Table) -> None:
    """Commit no rows. If another commit is faster, it has the same effect."""
    with suppress(Conflict):
        commit(table, TableChange())


def _old_conditions(context: Context, topic: Topic) -> dict[str, Listed]:
    """Return the conditions of erasures whose rows no log can hold any more."""
    clock = (
        datetime.fromtimestamp(context.clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    old = old_conditions(topic, clock)
    return {path.partition("/")[2]: context.storage.files(path)[0] for path in old}


def _old_plans(context: Context, request: Expire, topic: Topic) -> dict[str, Listed]:
    """Return the plans that no retry needs any more. The newest plan stays: it shows that loads ran."""
    before = context.clock() - max(request.older_than_s, STALE_S)
    plans = sorted(topic.files(Folder.PLANS).items(), key=lambda plan: plan[1].modified)
    return {path: file for path, file in plans[:-1] if file.modified <= before}
