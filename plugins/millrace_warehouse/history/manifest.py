"""Manifests of loads and publications: dataclasses, JSON, the chain of hashes, and the two laws.

A load exists once its manifest is created: the manifest appears whole, after the files that it names are on
disk. Two laws must close, or there is no load:

    read = written + tombstones + rejected + filtered    per partition, in records; filtered were erased
    [start, end) = data batches + control batches + gaps     per partition, in offsets: every gap is listed

Each manifest carries the SHA-256 of its own content and that of the manifest before it, so an edit of any
manifest breaks the chain. Depends on neither files, Parquet nor Spark.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import hour_of, number_of
from millrace_warehouse.log.kinds import TOMBSTONE, Kind
from millrace_warehouse.log.ranges import Gap

T = TypeVar("T")

FORMAT = 3


class ManifestError(MillraceError):
    """A manifest cannot be decoded: it is not JSON, a key is missing or has the wrong type, or its format is
    unknown.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPartition:
    """The partition of another cluster from which a mirrored partition's batches were copied."""

    cluster: str
    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Range of one partition in a load; a partition without new records has start == end."""

    partition: int
    start: int
    start_base: int | None = None
    """Byte position at which the first batch must begin, where offsets are byte positions; None when nothing
    was read before.
    """
    end: int
    end_base: int | None = None
    end_epoch: int | None = None
    """Leader epoch of the batch that ends at `end`; None when the epoch is not known."""
    read: int = 0
    """Data records in the range."""
    written: int = 0
    tombstones: int = 0
    """Messages without a value, which are no rows. The version before counts them as rejected."""
    rejected: int = 0
    rejected_by_kind: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Kind -> its rejected records; empty in manifests of the version before."""
    filtered: int = 0
    """Rows that erasures took out or left out. `LoadManifest.erased` counts them by erasure and hour."""
    data_batches: int = 0
    control_batches: int = 0
    bytes: int = 0
    """Size of the batches in the log, compressed."""
    gaps: Sequence[Gap] = ()
    """Gaps in the range. Besides a reader's reasons there is `control`: the offsets expired, and no record
    was in them.
    """
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    schema_ids: Sequence[int] = ()
    origin: OriginPartition | None = None

    @property
    def reach(self) -> int:
        """The first offset that may hold new records: no other batch begins before `end_base`."""
        return max(self.end, self.end_base or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file beside a manifest, by its path from the topic's folder."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile(StoredFile):
    """One Parquet file with rows of one hour."""

    hour: str
    """The hour in UTC, such as `2015-05-17T10`; UNFILED for rows without a valid time."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFile(StoredFile):
    """One Parquet file with records that could not be decoded."""

    rows: int
    records: int
    """Number of records in the rows: one row may be a whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneFile(StoredFile):
    """One Parquet file with tombstones."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSequences:
    """Sequence numbers of one producer instance in one ten-minute window of event time."""

    server: str
    service: str
    instance: int
    window: int
    """Start of the window, ms since the epoch."""
    ranges: Sequence[Sequence[int]]
    """[first, last] pairs of the sequence numbers found, ascending, neither overlapping nor touching."""
    duplicates: Sequence[Sequence[int]] = ()
    """[first, last] pairs of duplicate sequence numbers, once for each additional row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRows:
    """Rows of one hour and one partition that an erasure took out, or left out when they were read."""

    erasure: str
    partition: int
    hour: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideMessages:
    """Messages of one hour and one kind that did not become rows."""

    hour: str
    """Hour of the time in the record's audit header, or else of the record's time; UNFILED as for rows."""
    kind: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadManifest:
    """One load: `loads/<10 digits>.json`, or `editions/<10 digits>.<4 digits>.json`; never changed."""

    topic: str
    topic_id: str
    cluster_id: str
    load: int
    edition: int = 1
    """1 for the first reading of these offsets. Each re-load of the offsets has the next number."""
    attempt: str
    """Name of the attempt that wrote the files in `rows/<10 digits>-<attempt>/`, which no process lists.

    The name is the edition in four digits and a random number, so two attempts never share a name.
    """
    run_id: str
    created: str
    schema: int
    """Number of the schema in `schema/` that defines the files' columns."""
    file_by_ms: int
    """Time in ms since the epoch. Rows with this time or a later one are UNFILED, also in a re-load."""
    partitions: Sequence[PartitionRange]
    files: Sequence[DataFile]
    rejected_files: Sequence[RejectedFile] = ()
    tombstone_files: Sequence[TombstoneFile] = ()
    aside_by_hour: Sequence[AsideMessages] = ()
    """Messages that did not become rows, by hour and kind, ascending; empty in older manifests."""
    unknown_fields: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Field of JSON objects that no column takes -> messages with it, of the messages that were searched: one
    in a hundred, and every rejected one.
    """
    entries: StoredFile | None = None
    """The Iceberg manifest with an entry for each of the files, None for a load without rows."""
    sequences: Sequence[ProducerSequences] = ()
    sequences_file: StoredFile | None = None
    """The file with the sequences when `sequences` would be long; `sequences_of` reads either."""
    reason: str | None = None
    """Reason for reading these offsets again; None for the first edition."""
    previous: str | None
    """`sha256` of the previous load's manifest, or None for the first load. A later edition holds the
    `sha256` of the edition that it replaces.
    """
    erases: str | None = None
    """The erasure that made this edition from existing rows, or that made this load without rows. Such a load
    takes the number that any running load would use. None if the rows were read from a log.
    """
    erasures: Sequence[str] = ()
    """All erasures that existed when the rows were written. No row matches any of them."""
    erased: Sequence[ErasedRows] = ()
    """Rows of the load's offsets that are in no file, because an erasure took them out or left them out."""
    erased_sequences: Sequence[ProducerSequences] = ()
    """Sequence numbers of the erased rows, unless they are in `erased_sequences_file`. An auditor does not
    count them as missing.
    """
    erased_sequences_file: StoredFile | None = None
    format: int = FORMAT
    sha256: str = ""
    """SHA-256 of this manifest without this key. `sealed` fills it in."""

    @property
    def rows(self) -> int:
        return sum(partition.written for partition in self.partitions)

    @property
    def rejected(self) -> int:
        return sum(partition.rejected for partition in self.partitions)

    @property
    def tombstones(self) -> int:
        return sum(partition.tombstones for partition in self.partitions)

    @property
    def rejected_by_kind(self) -> dict[str, int]:
        """Kind -> rejected records, for every kind; all 0 in manifests of the version before."""
        kinds = Counter({kind.value: 0 for kind in Kind})
        for partition in self.partitions:
            kinds.update(partition.rejected_by_kind)
        return dict(kinds)

    @property
    def aside(self) -> int:
        """Messages that did not become rows: rejected records and tombstones."""
        return self.rejected + self.tombstones

    @property
    def aside_files(self) -> list[RejectedFile | TombstoneFile]:
        """Files of the messages that did not become rows."""
        return [*self.rejected_files, *self.tombstone_files]

    @property
    def ranges(self) -> list[OffsetRange]:
        """The offsets that the load holds. Partitions without new records are left out."""
        return [
            OffsetRange(partition=part.partition, start=part.start, end=part.end)
            for part in self.partitions
            if part.end > part.start
        ]

    @property
    def ends(self) -> dict[int, int]:
        return {partition.partition: partition.end for partition in self.partitions}

    def rows_by_hour(self) -> dict[str, int]:
        """Map each hour, such as `2015-05-17T10`, to its rows. Rows without an hour are under UNFILED."""
        rows: dict[str, int] = {}
        for file in self.files:
            rows[file.hour] = rows.get(file.hour, 0) + file.rows
        return rows

    def covers(self, topic_id: str, ends: Mapping[int, int]) -> bool:
        """Return True if every partition of that topic was read at least to its end in `ends`.

        Where offsets are byte positions, the end of a batch and the beginning of the next batch are the same
        place with two offsets. An end may be either.
        """
        covered = {part.partition: part.reach for part in self.partitions}
        return self.topic_id == topic_id and all(covered.get(p, 0) >= end for p, end in ends.items())


UNASKED = "unasked"
ACCEPTED = ", which this topic accepts as proof"
"""End of a proven verdict's first reason, after the auditor's own verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourVerdict:
    """The auditor's verdict on an hour when the hour was published."""

    verdict: str
    """The auditor's verdict, `complete` also where `carried` is enough; UNASKED without an auditor."""
    watermark: str | None = None
    checked: str | None = None
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRows:
    """Rows of one hour in one edition of a load."""

    load: int
    edition: int = 1
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HourChange:
    """Change of one hour, or of several empty hours in a row, in a publication: a row of the table of hours.

    The highest publication holds an hour's newest change. The hour's rows are the sum of `added - removed`
    over its changes. Neither a revision nor the hour's rows are stored here: they would need every hour in
    every publication (0.6 MB at 26,280 hours), or a scan of the table's entries (1.4 s).
    """

    hour: str
    """The hour in UTC, such as `2015-05-17T10`, or UNFILED."""
    kind: str
    """first, late, reload, erase, verdict, or rebuild. A rebuild reports rows for which no file was left."""
    loads: Sequence[LoadRows]
    """Rows added. For `reload`, the rows of the hour in the new editions."""
    verdict: HourVerdict
    added: int
    removed: int
    aside: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Kind -> messages of the hour that did not become rows, in the loads since the hour's previous change.

    The number is negative where a re-load has fewer. The sum over an hour's changes is the hour's present
    number.
    """
    last: str = ""
    """The last of several complete hours without a row, of which `hour` is the first; empty for one hour."""

    @property
    def hours(self) -> list[str]:
        """Every hour that changed."""
        if not self.last:
            return [self.hour]
        return [hour_of(number) for number in range(number_of(self.hour), number_of(self.last) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """Newest load and editions that the table includes."""

    load: int
    """The newest load that was considered; 0 for none."""
    sha256: str
    """SHA-256 of its manifest; empty for none."""
    editions: Mapping[str, int]
    """Load, as a decimal number -> its newest edition that was considered, for re-loaded loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousPublication:
    """The previous publication: the path and hash of its manifest."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One publication: the manifest `publications/<10 digits>-<attempt>.json`, which proves one commit of the
    table.

    It holds the whole state, so the next publication reads one manifest of a publication and the manifests of
    newer loads. It is valid when the table's property names it with its SHA-256. A manifest of an attempt
    that lost is a stray file.
    """

    topic: str
    number: int
    attempt: str
    run_id: str
    created: str
    previous: PreviousPublication | None
    loads: Through
    schema: int
    published: Sequence[Sequence[str]]
    """[first, last] ranges of published hours, ascending, neither overlapping nor adjoining. UNFILED is
    stated separately.
    """
    unfiled_published: bool = False
    unpublished: Mapping[str, Sequence[LoadRows]]
    """Hour, or UNFILED -> its rows that wait for publication."""
    waiting_aside: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    """Hour -> kind -> messages that did not become rows; the hour's next change takes them over."""
    complete_from: str | None
    """The first of the complete hours, or None before any hour was complete.

    It begins with the first hour from 2000 on that was published complete, and moves back over complete hours
    before it. So an hour that no correct clock can have shown does not hold it back.
    """
    complete_until: str | None
    """End of the complete hours. Every hour in [complete_from, complete_until) is published and complete, and
    none of its rows wait.
    """
    incomplete: Sequence[Sequence[str]] = ()
    """[first, last] ranges of published hours whose newest verdict is not complete. UNFILED, which is never
    complete, is left out.
    """
    rows: int
    """Rows of the table after the publication."""
    lost: Mapping[str, Sequence[LoadRows]] = dataclasses.field(default_factory=dict)
    """Published hour -> its rows that the table lacks, because a rebuild found no file that has them."""
    changes: Sequence[HourChange]
    rejected: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Changed hour -> its messages that loads have set aside, as the auditor counts them."""
    judged_through: str | None = None
    """The auditor's cursor. The table has every final verdict that changed before it."""
    format: int = FORMAT
    sha256: str = ""


_NOT_IN_THE_FIRST_FORM = (
    *("erases", "erasures", "erased", "erased_sequences", "erased_sequences_file"),
    *("rejected", "judged_through"),
    *("tombstone_files", "aside_by_hour", "waiting_aside", "unknown_fields"),
)
_NOT_IN_THE_FIRST_FORM_OF_A_PARTITION: Mapping[str, Any] = {
    "end_epoch": None,
    "tombstones": 0,
    "rejected_by_kind": {},
}
"""Key -> its empty value; a leader epoch of 0 is not empty."""
Manifest = LoadManifest | Publication
M = TypeVar("M", LoadManifest, Publication)


def now() -> str:
    """Return the current time as manifests state it: UTC, ISO 8601, in ms."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def content_hash(manifest: Manifest) -> str:
    """Return the SHA-256 of the manifest without its own `sha256` and empty keys of later versions."""
    values = dataclasses.asdict(manifest)
    del values["sha256"]
    for name in _NOT_IN_THE_FIRST_FORM:  # a manifest from before these keys keeps its hash
        if not values.get(name, True):
            del values[name]
    for change in values.get("changes", ()):
        for name in ("aside", "last"):
            if not change[name]:
                del change[name]
    for part in values.get("partitions", ()):
        for name, empty in _NOT_IN_THE_FIRST_FORM_OF_A_PARTITION.items():
            if part[name] == empty:
                del part[name]
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(manifest: M) -> M:
    """Return the manifest with its own hash filled in. This is the last step before it is written."""
    return dataclasses.replace(manifest, sha256=content_hash(manifest))


def encode(value: Any) -> bytes:
    """Return any dataclass of this file as JSON for people and programs."""
    return (json.dumps(dataclasses.asdict(value), sort_keys=True, indent=1) + "\n").encode()


def decode(cls: type[T], content: bytes, where: str) -> T:
    """Return the dataclass that `encode` wrote. Its hash is not checked.

    Raise ManifestError, which names `where` and the key, when the content has another form.
    """
    try:
        values = json.loads(content)
    except ValueError as error:
        raise ManifestError(
            f"{where} is not JSON ({error}): it was cut or edited, restore it from a copy"
        ) from None
    if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
        raise ManifestError(
            f"{where} has format {values['format']}, this version reads {FORMAT}: use the version that wrote"
            " it, or load into a new warehouse"
        )
    decoded: T = _build(cls, values, where)
    return decoded


def _build(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_dataclass(hint, value, where)
    if origin is types.UnionType:
        return None if value is None else _build(arguments[0], value, where)
    if origin is Mapping and isinstance(value, dict):
        return {key: _build(arguments[1], item, f"{where}: {key}") for key, item in value.items()}
    if origin is Sequence and isinstance(value, list):
        return tuple(_build(arguments[0], item, where) for item in value)
    if type(value) is hint:
        return value
    raise ManifestError(f"{where} has the wrong type: {value!r}; it was edited, restore it from a copy")


@functools.cache
def _fields(cls: Any) -> tuple[Mapping[str, Any], Set[str]]:
    """Return the fields' types and the required fields. Cached, because this takes longer than decoding."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return typing.get_type_hints(cls), required


def _build_dataclass(cls: Any, values: Any, where: str) -> Any:
    hints, required = _fields(cls)
    if not isinstance(values, dict) or not required <= values.keys() <= hints.keys():
        keys = sorted(set(values) ^ set(hints)) if isinstance(values, dict) else values
        raise ManifestError(
            f"{where} has missing or unknown keys: {keys}; it was edited, or a newer version wrote it"
        )
    return cls(**{key: _build(hints[key], value, f"{where}: {key}") for key, value in values.items()})


def check_hash(manifest: Manifest) -> str | None:
    """Return one line if the manifest's content does not match its own hash, else None."""
    stated, actual = manifest.sha256, content_hash(manifest)
    if stated == actual:
        return None
    return f"the manifest was edited: it states sha256 {stated[:12]}…, its content has {actual[:12]}…"


def check_law(manifest: LoadManifest) -> list[str]:
    """Return every way in which the load breaks the two laws; each line names partition and offsets."""
    problems = []
    for part in manifest.partitions:
        where = f"partition {part.partition}, offsets [{part.start}, {part.end})"
        if part.read != part.written + part.tombstones + part.rejected + part.filtered:
            problems.append(
                f"{where}: {part.read} records read, but {part.written} written"
                f" + {part.tombstones} tombstones + {part.rejected} rejected + {part.filtered} filtered"
            )
        if part.rejected_by_kind and sum(part.rejected_by_kind.values()) != part.rejected:
            problems.append(f"{where}: {part.rejected} rejected, by kind {dict(part.rejected_by_kind)}")
        if part.end < part.start:
            problems.append(f"{where}: the end lies before the start")
        if part.end > part.start and not (part.data_batches or part.control_batches or part.gaps):
            problems.append(f"{where}: neither a batch nor a gap accounts for these offsets")
        for gap in part.gaps:
            if not part.start <= gap.start < gap.end <= part.end:
                problems.append(f"{where}: the gap [{gap.start}, {gap.end}) lies outside")
    erased: dict[int, int] = {}
    for rows in manifest.erased:
        erased[rows.partition] = erased.get(rows.partition, 0) + rows.rows
    filtered = {part.partition: part.filtered for part in manifest.partitions if part.filtered}
    if erased != filtered:
        problems.append(f"rows erased by partition are {erased}, the partitions state {filtered}")
    rejected = sum(file.records for file in manifest.rejected_files)
    tombstones = sum(file.rows for file in manifest.tombstone_files)
    in_files = sum(file.rows for file in manifest.files)
    if in_files != manifest.rows:
        problems.append(f"the files have {in_files} rows, the partitions state {manifest.rows}")
    if rejected != manifest.rejected:
        problems.append(
            f"the rejected files stand for {rejected} records, the partitions state {manifest.rejected}"
        )
    stated = {TOMBSTONE: manifest.tombstones, **manifest.rejected_by_kind}
    by_hour = Counter(dict.fromkeys(stated, 0))
    for each in manifest.aside_by_hour:
        by_hour[each.kind] += each.messages
    if dict(by_hour) != stated:
        problems.append(f"messages without rows by hour are {dict(by_hour)}, the partitions state {stated}")
    if tombstones != manifest.tombstones:
        problems.append(
            f"the files of tombstones have {tombstones}, the partitions state {manifest.tombstones}"
        )
    return problems


def check_erased(manifest: LoadManifest, before: LoadManifest) -> list[str]:
    """Return every difference between an erasure's edition and its predecessor without the erased rows."""
    problems = []
    was, now = before.rows_by_hour(), manifest.rows_by_hour()
    taken: dict[str, int] = {}
    for sign, each in ((1, manifest), (-1, before)):
        for rows in each.erased:
            taken[rows.hour] = taken.get(rows.hour, 0) + sign * rows.rows
    for hour in sorted(was.keys() | now.keys() | taken.keys()):
        gone, stated = was.get(hour, 0) - now.get(hour, 0), taken.get(hour, 0)
        if gone != stated:
            problems.append(f"{gone} rows of {hour} are gone, erasure {manifest.erases} states {stated}")
    lost = [rows for rows in before.erased if rows not in manifest.erased]
    if lost:
        problems.append(f"it no longer states the rows that erasure {lost[0].erasure} took out")
    then, there = (
        {part.partition: (part.read, part.tombstones, part.rejected) for part in each.partitions}
        for each in (before, manifest)
    )
    if then != there:
        problems.append("it has other records than the edition before, and an erasure reads no records")
    return problems


def check_follows(manifest: LoadManifest, before: LoadManifest | None) -> list[str]:
    """Return every way in which a load does not continue its predecessor, one line each."""
    if before is None:
        return [] if manifest.previous is None else ["the first load names a load before it"]
    problems = []
    if manifest.previous != before.sha256:
        problems.append(
            f"it follows a load with sha256 {str(manifest.previous)[:12]}…,"
            f" but load {before.load} has {before.sha256[:12]}…"
        )
    starts = {part.partition: part.start for part in manifest.partitions}
    if manifest.topic_id != before.topic_id:
        return problems
    for partition, end in sorted(before.ends.items()):
        start = starts.get(partition)
        if start is None:
            problems.append(f"partition {partition} is left out, but was read to offset {end} before")
        elif start != end:
            kind = "missing" if start > end else "there twice"
            low, high = min(start, end), max(start, end)
            problems.append(f"partition {partition}, offsets [{low}, {high}) are {kind}")
    return problems
