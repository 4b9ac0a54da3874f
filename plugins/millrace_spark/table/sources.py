"""What every hour is made from: its newest revision's rows, and those of the loads that came since.

To a revision are added the loads with rows of the hour that it lacks, and the newest editions of loads that
were read again. An hour without a revision is made from every load that has rows of it. `hour_index` says
which loads have some, so that old loads cost nothing. Expired loads are left out: all their hours have a
revision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.parquet.hour_files import hour_folder
from millrace_spark.table.index import HourIndex, hour_index
from millrace_spark.table.revisions import newest_revisions, revision_folder, without_revision
from millrace_spark.warehouse.editions import (
    edition_folder,
    expired_folders,
    expired_name,
    newest_editions,
    read_edition,
)
from millrace_spark.warehouse.layout import HOURLY, load_folder, load_numbers
from millrace_spark.warehouse.manifest import DataFile, HourManifest, LoadManifest, LoadPart, OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files that one load, or one revision, has of an hour: all of them have the same columns."""

    folder: str = ""
    files: Sequence[DataFile] = ()
    left_out: Sequence[OffsetRange] = ()
    """Offsets whose rows are not taken: newer editions hold them."""
    age: tuple[int, int] = (0, 0)
    """(promotion, load): the files with the larger one have the newer columns.

    Not the schema's id: it rises with time in one subject, but not where another had the same schema before.
    """
    table_schema_id: int = 0

    @property
    def schema_file(self) -> str:
        """A file that has the columns; empty when there is none."""
        return f"{self.folder}/{self.files[0].path}" if self.files else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourSource:
    """What an hour is made from: its parts, and the files that hold their rows."""

    hour: str
    parts: Sequence[LoadPart]
    groups: Sequence[SourceFiles]
    """The files of the base, then those of the loads in their order."""
    base: int | None = None
    """The revision whose files stand for the parts it was made from."""

    @property
    def newest_columns(self) -> SourceFiles:
        """The files with the newest columns; of two editions of a load the later one is the last here."""
        usable = [group for group in self.groups if group.files] or [*self.groups, SourceFiles()]
        return max(reversed(usable), key=lambda group: group.age)


@dataclass(slots=True)
class LoadHistory:
    """The loads and editions that could be seen at one moment; manifests are read once."""

    fs: Filesystem
    topic: str
    numbers: Sequence[int]
    editions: Mapping[int, int]
    """Loads that were read again -> their newest edition."""
    expired: set[str]
    _manifests: dict[tuple[int, int], LoadManifest] = field(default_factory=dict)

    @classmethod
    def of(cls, fs: Filesystem, topic: str) -> LoadHistory:
        """Everything that is there now."""
        # First what has expired: its files are gone before, so nothing is taken for empty later on.
        expired = expired_folders(fs, topic)
        # No number is left out, as it may be in a listing while loads are published: a gap is an error.
        numbers = range(1, max(load_numbers(fs, topic), default=0) + 1)
        return cls(fs, topic, numbers, newest_editions(fs, topic), expired)

    def edition(self, load: int) -> int:
        """The newest edition of a load."""
        return self.editions.get(load, 1)

    def folder(self, load: int) -> str:
        """Where the newest edition of a load lies, its topic's folder included."""
        return f"{self.topic}/{edition_folder(load, self.edition(load))}"

    def has_expired(self, load: int) -> bool:
        """True if the files of the newest edition were deleted: its hours have them all."""
        return expired_name(edition_folder(load, self.edition(load))) in self.expired

    def manifest(self, load: int, edition: int | None = None) -> LoadManifest:
        """The manifest of an edition, the newest when none is named; its hash is checked."""
        key = load, self.edition(load) if edition is None else edition
        if key not in self._manifests:
            manifest = read_edition(self.fs, self.topic, *key)
            if key[1] > 1 and manifest.previous != self.manifest(load, key[1] - 1).sha256:
                raise MillraceError(
                    f"{self.topic}/{edition_folder(*key)} replaces another {load_folder(load)} than the one"
                    " that is there: if the load was made anew, move this edition and its ledger entry away"
                )
            self._manifests[key] = manifest
        return self._manifests[key]

    def loads_with_rows(self, hour: str, index: HourIndex) -> list[int]:
        """The loads whose newest edition has rows of an hour that have not expired, ascending."""
        first = {load for load in index.loads(hour) if load not in self.editions}
        later = {load for load in self.editions if self.manifest(load).rows_by_hour().get(hour)}
        return [load for load in sorted(first | later) if not self.has_expired(load)]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """An hour that loads have rows of and that was never published."""

    hour: str
    rows: int
    loaded: datetime
    """When the first load that has rows of it was made."""

    @property
    def since(self) -> datetime:
        """When its rows were due in the table; where a producer's clock is fast by years, when they came."""
        return min(self.loaded, datetime.fromisoformat(f"{self.hour}:59:59").replace(tzinfo=UTC))


UNPROVEN_AFTER_S = 24 * 3600
"""An hour that waits longer than this is named by loads and by `verify`: no schedule will publish it."""
_NAMED = 5
"""Most hours that a note names; the rest are counted."""


def unpublished_note(topic: str, rows: Mapping[str, int]) -> str:
    """One line about hours, with their rows, that were loaded and never published."""
    hours = sorted(rows)
    named = ", ".join(f"{hour} ({rows[hour]:,})" for hour in hours[:_NAMED])
    more = f" and {len(hours) - _NAMED} more" if len(hours) > _NAMED else ""
    return (
        f"{topic}: {sum(rows.values()):,} row(s) of {len(hours)} hour(s) are loaded and in no table:"
        f" {named}{more}; run `millrace hourly {topic} --unpublished`"
    )


def unpublished_hours(fs: Filesystem, topic: str) -> list[Unpublished]:
    """Every hour that loads have rows of and that has no revision, in order."""
    history = LoadHistory.of(fs, topic)
    index = hour_index(fs, topic, len(history.numbers))
    # Rows that a re-load has moved are in its manifest, not in the index, which knows first editions.
    moved = {hour for load in history.editions for hour in history.manifest(load).rows_by_hour()}
    unpublished = []
    for hour in without_revision(fs, topic, index.hours.keys() | moved):
        loads = [history.manifest(load) for load in history.loads_with_rows(hour, index)]
        if rows := sum(load.rows_by_hour().get(hour, 0) for load in loads):
            loaded = min(datetime.fromisoformat(load.created) for load in loads)
            unpublished.append(Unpublished(hour, rows, loaded))
    return unpublished


def hours_with_news(fs: Filesystem, topic: str, run_id: str) -> list[str]:
    """The published hours whose newest revision lacks a load's rows, or has those of an earlier edition.

    Also those whose newest revision is of the run itself, published by an earlier try of it.
    """
    # In this order, as in `publish_hours`.
    revisions = {newest.manifest.hour: newest.manifest for newest in newest_revisions(fs, topic)}
    history = LoadHistory.of(fs, topic)
    folded = {hour: _editions(newest) for hour, newest in revisions.items()}
    news = {hour for hour, newest in revisions.items() if newest.run_id == run_id}
    news |= {
        hour
        for hour, parts in folded.items()
        for load, edition in parts.items()
        if history.edition(load) > edition
    }
    index = hour_index(fs, topic, len(history.numbers))
    for hour, parts in folded.items():
        if any(load not in parts for load in history.loads_with_rows(hour, index)):
            news.add(hour)
    return sorted(news)


def hour_sources(
    fs: Filesystem, topic: str, revisions: Mapping[str, HourManifest | None]
) -> list[HourSource]:
    """What each hour is made from, given its newest revision; MillraceError when a part of it is gone."""
    history = LoadHistory.of(fs, topic)
    bases = {hour: newest if _still_holds(history, newest) else None for hour, newest in revisions.items()}
    index = hour_index(fs, topic, len(history.numbers))
    sources = []
    for hour, base in bases.items():
        folded = _editions(base)
        loads = history.loads_with_rows(hour, index)
        news = [history.manifest(load) for load in loads if folded.get(load) != history.edition(load)]
        if base is None:
            sources.append(_rebuild_hour(history, hour, revisions[hour], news))
        else:
            sources.append(_add_to_revision(history, base, news))
    return sources


def _editions(revision: HourManifest | None) -> dict[int, int]:
    """Load -> edition of what a revision was made from."""
    return {part.load: part.edition for part in revision.loads} if revision is not None else {}


def _still_holds(history: LoadHistory, newest: HourManifest | None) -> bool:
    """True if the newest of the loads a revision was made from is still that load.

    Loads are made anew from one number on, never in the middle: if any was, the newest was.
    """
    if newest is None or not newest.loads:
        return False
    last = max(newest.loads, key=lambda part: part.load)
    if last.load not in history.numbers:
        return False
    for part in newest.loads:
        if part.edition > history.edition(part.load):
            raise MillraceError(
                f"{history.topic}/{edition_folder(part.load, part.edition)} with {part.rows} rows of"
                f" {newest.hour} is gone: restore it from a copy"
            )
    return history.manifest(last.load, last.edition).sha256 == last.sha256


def _part(hour: str, manifest: LoadManifest) -> LoadPart:
    rows = manifest.rows_by_hour().get(hour, 0)
    return LoadPart(load=manifest.load, edition=manifest.edition, sha256=manifest.sha256, rows=rows)


def _files(history: LoadHistory, hour: str, manifest: LoadManifest) -> SourceFiles:
    return SourceFiles(
        folder=history.folder(manifest.load),
        files=[file for file in manifest.files if file.hour == hour],
        age=(manifest.promotion or 0, manifest.load),
        table_schema_id=manifest.table_schema_id,
    )


def _add_to_revision(history: LoadHistory, base: HourManifest, news: Sequence[LoadManifest]) -> HourSource:
    """The hour from its newest revision and from what that one lacks."""
    stale = [part for part in base.loads if part.edition < history.edition(part.load)]
    parts = {part.load: part for part in base.loads}
    parts |= {part.load: _part(base.hour, history.manifest(part.load)) for part in stale}
    parts |= {manifest.load: _part(base.hour, manifest) for manifest in news}
    replaced = [history.manifest(part.load, part.edition) for part in stale if part.rows]
    kept = [part for part in base.loads if part not in stale]
    if replaced and not _can_tell_apart(history, replaced, kept):
        manifests = [*(history.manifest(part.load) for part in kept), *news]
        return _rebuild_hour(history, base.hour, base, manifests)
    files = SourceFiles(
        folder=f"{history.topic}{HOURLY}/{revision_folder(base.hour, base.revision)}",
        files=base.files,
        left_out=[offsets for manifest in replaced for offsets in manifest.ranges],
        age=(base.promotion or 0, max(part.load for part in base.loads)),
        table_schema_id=base.table_schema_id,
    )
    return HourSource(
        hour=base.hour,
        parts=[parts[load] for load in sorted(parts)],
        groups=[files, *(_files(history, base.hour, manifest) for manifest in news)],
        base=base.revision,
    )


def _can_tell_apart(history: LoadHistory, replaced: Sequence[LoadManifest], kept: Sequence[LoadPart]) -> bool:
    """True if partition and offset say of each row whether it is one of the replaced.

    Not so in an hour of two topics of one name, the second created when the first was deleted.
    """
    topic_ids = {manifest.topic_id for manifest in replaced}
    return len(topic_ids | {history.manifest(part.load, part.edition).topic_id for part in kept}) == 1


def _rebuild_hour(
    history: LoadHistory, hour: str, newest: HourManifest | None, manifests: Sequence[LoadManifest]
) -> HourSource:
    """The hour from all of its loads; a load that has lost its rows to a later edition stays as a part."""
    manifests = sorted(manifests, key=lambda manifest: manifest.load)
    loads = {manifest.load for manifest in manifests}
    parts = {manifest.load: _part(hour, manifest) for manifest in manifests}
    for part in newest.loads if newest is not None else ():
        if part.load in history.numbers:
            _check_present(history, hour, part, loads)
            if history.edition(part.load) > 1:
                parts.setdefault(part.load, _part(hour, history.manifest(part.load)))
    return HourSource(
        hour=hour,
        parts=[parts[load] for load in sorted(parts)],
        groups=[_files(history, hour, manifest) for manifest in manifests],
    )


def _check_present(history: LoadHistory, hour: str, part: LoadPart, loads: set[int]) -> None:
    """MillraceError when the rows of a part cannot be read again: their folder is gone, or has expired.

    A load that was made anew may have other hours; it has another hash.
    """
    manifest = history.manifest(part.load)
    folder = f"{history.folder(part.load)}/{hour_folder(hour)}"
    rows = manifest.rows_by_hour().get(hour, 0)
    if rows and history.has_expired(part.load):
        raise MillraceError(
            f"{folder} with {rows} rows has expired and its hour must be made anew: restore it from a copy"
        )
    if rows and part.load not in loads and manifest.sha256 == part.sha256:
        raise MillraceError(f"{folder} with {rows} rows is gone: restore it from a copy")
