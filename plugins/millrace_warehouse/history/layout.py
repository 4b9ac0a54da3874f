"""Layout of a warehouse: the path of each file, and how the manifests of loads are found and read.

    <warehouse>/catalog.db                                   a local warehouse's SQLite catalog
    <warehouse>/.drivers/                                    Spark drivers of runs, and their answers
    <topic>/loads/<10 digits>.json                           a load's manifest; creating it commits the load
                 /_head                                      number of a load at which a listing may begin
    <topic>/editions/<10 digits>.<4 digits>.json             a re-load: the same offsets read again
    <topic>/rows/<10 digits>-<attempt>/                      files of one attempt, under final names
                 <hour>-<task>-<8 hex>.parquet               its rows of one hour of event time, UTC
                 rejected-<task>-<8 hex>.parquet             its records that could not be decoded
                 tombstones-<task>-<8 hex>.parquet           its messages without a value
                 entries.avro, sequences.json.gz             for the table, and for `verify`
    <topic>/plans/<run id>.json                              the end of a run, stored before it reads
    <topic>/schema/<4 digits>.json                           the columns of the rows, and who chose them
    <topic>/publications/<10 digits>-<attempt>.json          a publication's manifest, proof of a commit
    <topic>/ledger/{loads,editions,publications}/<name>      the hash of each manifest, written after it
    <topic>/expired/<10 digits>.json                         the data files that a run of `expire` deletes
    <topic>/erasures/<id>.json                               who had rows erased, and why; creating it erases
                     <id>.where, <id>.done.json              the condition; proof that the rows are gone
    <topic>/compacted/<attempt>/                             files of the table that no load wrote,
                 files.json                                  and the hash of each
    <topic>/audited/<10 digits>.<4 digits>.json.gz           counts of an edition reported to the auditor
                   /_table                                   counts of the table's files, by hour
                   /_verified                                findings of `verify`, for the auditor
    <topic>/table/                                           `location` of the Iceberg table
    <topic>/hours/                                           `location` of its table of hours

No file is renamed or written twice, except files whose names begin with `_`. Handles names and manifests;
uses neither brokers, Spark nor Parquet.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.history.manifest import (
    LoadManifest,
    M,
    Publication,
    check_follows,
    check_hash,
    decode,
)
from millrace_warehouse.storage.interface import Listed, Storage

T = TypeVar("T")
CATALOG = "catalog.db"
"""Name of the catalog's file. SQLite writes files beside it whose names begin with this name."""
HEAD = "_head"
AUDITED_TABLE, AUDITED_ROWS, VERIFIED = "_table", "_rows", "_verified"
HEAD_EVERY = 100
"""Loads between updates of `_head`. On every storage, listing 100 names costs as much as listing none."""
EDITION = re.compile(r"(\d{10})\.(\d{4,})\.json")
"""Name of an edition's manifest: its load, and its number."""
_ATTEMPT = re.compile(r"(\d{10})-(\d{4,})-[0-9a-f]+")
OLD_LOAD = "load="
"""Beginning of a load's folder in format 2."""


class Folder(StrEnum):
    """Names in a topic's folder."""

    LOADS = "loads"
    EDITIONS = "editions"
    ROWS = "rows"
    PLANS = "plans"
    SCHEMA = "schema"
    PUBLICATIONS = "publications"
    LEDGER = "ledger"
    EXPIRED = "expired"
    ERASURES = "erasures"
    COMPACTED = "compacted"
    AUDITED = "audited"
    TABLE = "table"
    HOURS = "hours"

    def path(self, topic: str) -> str:
        return f"{topic}/{self}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's folder in the storage of a warehouse. `str` returns the topic's name in Kafka."""

    storage: Storage
    name: str

    def __str__(self) -> str:
        return self.name

    def names(self, folder: Folder) -> list[str]:
        """Return the names in one of the topic's folders, ascending."""
        return self.storage.names(folder.path(self.name))

    def recorded(self, folder: Folder, after: str = "") -> list[str]:
        """Return the names of a folder's manifests in the ledger that sort after `after`, ascending."""
        return self.storage.names(ledger_path(folder.path(self.name)), after=after)

    def files(self, folder: str) -> dict[str, Listed]:
        """Return the existing files below a folder, by their paths from the topic's folder."""
        return {f"{folder}/{file.path}": file for file in self.storage.files(f"{self}/{folder}")}


def check_topic(topic: Topic) -> None:
    """Refuse a topic whose folder would lie among the warehouse's own files, or holds loads of format 2."""
    if topic.name.startswith((CATALOG, ".")):
        raise ConfigError(
            f"topic {topic} cannot be loaded: a warehouse keeps its own files under names that begin with"
            f" {CATALOG if topic.name.startswith(CATALOG) else 'a dot'}; give the topic another name"
        )
    if any(name.startswith(OLD_LOAD) for name in topic.storage.names(topic.name)):
        raise ConfigError(
            f"{topic.storage.root}/{topic} holds loads of the warehouse format 2, and this release reads"
            " format 3: load into a new warehouse, and read the old one with the release that wrote it"
        )


def load_path(topic: str, load: int) -> str:
    return f"{Folder.LOADS.path(topic)}/{load:010d}.json"


def edition_path(topic: str, load: int, edition: int) -> str:
    if edition == 1:
        return load_path(topic, load)
    return f"{Folder.EDITIONS.path(topic)}/{load:010d}.{edition:04d}.json"


def manifest_path(manifest: LoadManifest) -> str:
    return edition_path(manifest.topic, manifest.load, manifest.edition)


def rows_folder(topic: str, load: int, attempt: str) -> str:
    """Return the folder for the files of one attempt. `attempted` parses its name."""
    return f"{Folder.ROWS.path(topic)}/{load:010d}-{attempt}"


def attempted(name: str) -> tuple[int, int] | None:
    """Parse the load and edition from the name of an attempt's folder. Return None for another name."""
    match = _ATTEMPT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def schema_path(topic: str, number: int) -> str:
    return f"{Folder.SCHEMA.path(topic)}/{number:04d}.json"


def publication_path(topic: str, number: int, attempt: str) -> str:
    return f"{Folder.PUBLICATIONS.path(topic)}/{number:010d}-{attempt}.json"


def ledger_path(path: str) -> str:
    """Return the path of a manifest's ledger entry: `t/ledger/loads/0000000001.json` for `t/loads/…`."""
    topic, _, inside = path.partition("/")
    return f"{topic}/ledger/{inside}"


def audited_path(topic: str, load: int, edition: int) -> str:
    return f"{Folder.AUDITED.path(topic)}/{load:010d}.{edition:04d}.json.gz"


def audited_table_path(topic: str) -> str:
    return f"{Folder.AUDITED.path(topic)}/{AUDITED_TABLE}"


def audited_rows_path(topic: str) -> str:
    return f"{Folder.AUDITED.path(topic)}/{AUDITED_ROWS}"


def verified_path(topic: str) -> str:
    return f"{Folder.AUDITED.path(topic)}/{VERIFIED}"


def expired_path(topic: str, number: int) -> str:
    return f"{Folder.EXPIRED.path(topic)}/{number:010d}.json"


def find(storage: Storage, cls: type[T], path: str) -> T | None:
    """Return the dataclass that `encode` wrote at a path, or None when there is no file."""
    try:
        return decode(cls, storage.read(path), path)
    except FileNotFoundError:
        return None


def read_checked(storage: Storage, cls: type[M], path: str) -> M:
    """Return the manifest at a path. Raise MillraceError when it is missing, broken or edited."""
    try:
        content = storage.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore it from a copy") from None
    manifest = decode(cls, content, path)
    if problem := check_hash(manifest):
        raise MillraceError(f"{path}: {problem}; restore it from a copy")
    return manifest


def read_load(topic: Topic, load: int) -> LoadManifest:
    """Return the first edition of a load. Raise MillraceError when it is missing, broken or edited."""
    return read_checked(topic.storage, LoadManifest, load_path(topic.name, load))


def read_edition(topic: Topic, load: int, edition: int) -> LoadManifest:
    """Return an edition of a load. Check that the edition before it is the manifest that it replaces.

    Raise MillraceError when it replaces another manifest, because the load was recreated, or when one of the
    two manifests is missing or edited.
    """
    path = edition_path(topic.name, load, edition)
    manifest = read_checked(topic.storage, LoadManifest, path)
    if edition > 1 and manifest.previous != read_edition(topic, load, edition - 1).sha256:
        raise MillraceError(
            f"{path} replaces another load than {edition_path(topic.name, load, edition - 1)}, which was"
            f" recreated: restore the old one from a copy, or move this edition away with {ledger_path(path)}"
        )
    return manifest


def numbers_in(storage: Storage, folder: str, after: int = 0, digits: int = 10) -> list[int]:
    """Return the numbers above `after` that name files of a folder, ascending, gaps or not."""
    names = storage.names(folder, after=f"{after:0{digits}d}.json" if after else "")
    numbered = map(re.compile(rf"(\d{{{digits},}})\.json").fullmatch, names)
    return sorted(int(match[1]) for match in numbered if match)


def load_numbers(topic: Topic, after: int = 0) -> list[int]:
    """Return the numbers of the existing loads above `after`, ascending, gaps or not, by one listing."""
    return numbers_in(topic.storage, Folder.LOADS.path(topic.name), after)


def newest_load(topic: Topic) -> LoadManifest | None:
    """Return the newest load, or None before the first.

    Raise MillraceError when a load since `_head` is missing: a run that continued from an earlier load would
    load the same offsets twice, or skip some for ever. The two listings begin at `_head`, so they do not grow
    with history. `verify` finds older loads that are missing.
    """
    head = _head(topic)
    # In this order: a load exists before its entry in the ledger.
    recorded = _recorded_loads(topic, head)
    numbers = load_numbers(topic, head)
    newest = max([head, *numbers, *recorded])
    if gone := set(range(head + 1, newest + 1)) - set(numbers):
        raise _gone(topic.name, min(gone))
    return read_load(topic, newest) if newest else None


def remember_newest(storage: Storage, load: LoadManifest) -> None:
    """Update `_head` to this load if the load's number is a multiple of HEAD_EVERY.

    A lost, old or cut `_head` only makes listings longer, so an error of the storage is ignored here.
    """
    if load.load % HEAD_EVERY == 0:
        with suppress(MillraceError):
            storage.put(f"{Folder.LOADS.path(load.topic)}/{HEAD}", io.BytesIO(str(load.load).encode()))


def require_load(topic: Topic) -> LoadManifest:
    """Return the newest load.

    Raise MillraceError when there is none, or when a load since `_head` is missing.
    """
    newest = newest_load(topic)
    if newest is None:
        raise MillraceError(
            f"no load of {topic} in {topic.storage.root}: check the warehouse and the topic, or run"
            " `millrace load`"
        )
    return newest


def loads_after(topic: Topic, after: int) -> Iterator[LoadManifest]:
    """Yield the first editions of the loads above `after`, ascending. Check each against its predecessor.

    Raise MillraceError for the first edition that is missing, broken or edited, or does not continue its
    predecessor.
    """
    before = read_load(topic, after) if after else None
    recorded = _recorded_loads(topic, after)  # before the loads, as in `newest_load`
    present = set(load_numbers(topic, after))
    newest = max({after, *present, *recorded})
    for number in range(after + 1, newest + 1):
        if number not in present:
            raise _gone(topic.name, number)
        load = read_load(topic, number)
        if problems := check_follows(load, before):
            raise MillraceError(f"{load_path(topic.name, number)}: {problems[0]}; restore it from a copy")
        yield load
        before = load


def unpublished_since(topic: Topic) -> LoadManifest | None:
    """Return the first load that the newest publication has not considered, or None when it has considered
    all.

    A publication that the table has lost since then counts: only the catalog could tell, and loads ask no
    catalog.
    """
    recorded = topic.recorded(Folder.PUBLICATIONS)
    through = 0
    if recorded:
        path = f"{Folder.PUBLICATIONS.path(topic.name)}/{recorded[-1]}"
        through = read_checked(topic.storage, Publication, path).loads.load
    newest = newest_load(topic)
    return read_load(topic, through + 1) if newest and newest.load > through else None


def publications_from(storage: Storage, path: str) -> Iterator[tuple[str, Publication]]:
    """Yield the publication at a path and all before it, the newest first, each with its path."""
    while path:
        publication = read_checked(storage, Publication, path)
        yield path, publication
        path = publication.previous.path if publication.previous is not None else ""


def editions_of(topic: Topic) -> dict[int, list[int]]:
    """Map each load to its editions after the first, ascending, by one listing. Loads without further
    editions are left out.

    Raise MillraceError when an edition is missing: a reader would fall back to the rows of the edition
    before.
    """
    # In this order: an edition exists before its entry in the ledger.
    recorded = _edition_numbers(topic.recorded(Folder.EDITIONS))
    editions = _edition_numbers(topic.names(Folder.EDITIONS))
    for load, numbers in sorted(recorded.items()):
        if missing := sorted(set(numbers) - set(editions.get(load, []))):
            raise MillraceError(
                f"{edition_path(topic.name, load, missing[0])} was published and is gone: restore it from a"
                " copy"
            )
    return editions


def newest_editions(topic: Topic) -> dict[int, int]:
    """Map each re-loaded load to its newest edition. Raise MillraceError when an edition is missing."""
    return {load: numbers[-1] for load, numbers in editions_of(topic).items()}


def _edition_numbers(names: list[str]) -> dict[int, list[int]]:
    editions: dict[int, list[int]] = {}
    for match in map(EDITION.fullmatch, names):
        if match:
            editions.setdefault(int(match[1]), []).append(int(match[2]))
    return {load: sorted(numbers) for load, numbers in editions.items()}


def _head(topic: Topic) -> int:
    """Return the number in `_head` if that load exists, else 0. A listing from it misses no newer load."""
    try:
        text = topic.storage.read(f"{Folder.LOADS.path(topic.name)}/{HEAD}")
        load = int(text) if text.isdigit() else 0
        topic.storage.read(load_path(topic.name, load), 0, 1)
    except FileNotFoundError:
        return 0
    return load


def _recorded_loads(topic: Topic, after: int) -> list[int]:
    return numbers_in(topic.storage, ledger_path(Folder.LOADS.path(topic.name)), after)


def _gone(topic: str, load: int) -> MillraceError:
    path = load_path(topic, load)
    return MillraceError(
        f"{path} was published and is gone: restore it from a copy; to load its offsets again on purpose,"
        f" delete {ledger_path(path)} and every later load with its entry"
    )
