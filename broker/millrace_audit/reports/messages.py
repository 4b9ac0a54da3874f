"""The records on the audit topics as values, and their bytes.

Every record is Avro after a schema id, like any event. A producer may write two bytes in place of the id, and
then needs no registry. The schemas are in `schemas/`. No conclusions are drawn from the records here.
Times are ms since the epoch.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from fastavro.schema import to_parsing_canonical_form

from millrace.installation import shipped
from millrace.topic_names import check_topic_name
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.event import PREFIX_BYTES
from millrace_audit.reports.fingerprints import joined, split
from millrace_audit.reports.ranges import SequenceRanges, from_deltas, merged, to_deltas
from millrace_registry.client import SchemaRegistryClient, UnknownSchema

AUDIT_TOPIC = "audit"
"""Topic of producers' hellos and reports, in each cluster to which they produce. The aggregate cluster
mirrors it."""
COUNTS_TOPIC = "audit-counts"
"""Topic of the counts of a cluster's own reader, in each cluster to which producers produce. It is mirrored
like `audit`."""

OFFLINE, WAREHOUSE, TABLE = "offline", "warehouse", "table"
"""The tiers after a cluster's own tier, which has the cluster's name."""
AUDITOR = "auditor"
"""Seat in which the auditor signs operators' decisions. No tier has this name."""

_NAMESPACE = "millrace.audit"
MOST_WINDOWS = 1000
"""Most windows in one report. A producer with news of more windows writes several reports."""
MOST_OPEN_WINDOWS = 500_000
"""Most windows of all topics that one instance may hold open: nearly ten years of one topic."""
MOST_UNKNOWN = 100
"""Most unknown schemas that are looked up for one fetch. After them only Millrace's own schemas are
recognized."""

NOTHING = -(1 << 63)
"""Value of `closed_through` for no promise at all."""
FOR_EVER = (1 << 63) - 1
"""Value of `closed_through` for an instance that has ended."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@cache
def schema_file(name: str) -> Mapping[str, Any]:
    """Return the schema that ships with Millrace under that name: of an audit record or of one
    of its events.
    """
    schema: dict[str, Any] = json.loads(shipped(f"schemas/{name}.avsc").read_text())
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """An instance is about to send its first event of a topic."""

    time: int
    cluster: str
    server: str
    service: str
    instance: int
    topic: str
    closed_through: int = NOTHING
    seal: bytes
    """Seal of the key that the instance's next report will show."""


@dataclass(frozen=True, slots=True)
class ReportedWindow:
    """Sequences of one topic and window; the `failed` sequences have an unknown outcome."""

    topic: str
    window: int
    acknowledged: SequenceRanges
    failed: SequenceRanges
    fingerprint: int = 0
    """Sum over the acknowledged messages, wrapped."""
    failed_fingerprint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcomes of an instance's events since its last report; `number` counts from 0."""

    time: int
    cluster: str
    server: str
    service: str
    instance: int
    number: int
    key: bytes
    """Key whose hash is the seal of the hello or report before."""
    seal: bytes
    """Seal of the key that the next report will show."""
    closed_through: int
    windows: Sequence[ReportedWindow]
    fingerprinted: bool = True
    """False if the producer does not see its messages' bytes: the windows' fingerprints are then 0."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The next offset that a reader will count in a partition; None when the partition was deleted."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    leader_epoch: int = -1
    """Leader epoch of the last batch before the offset; -1: not known."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A partition that a reader cannot read from an offset on, and the reason."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    cause: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """A partition whose log has lost messages that had been counted; the next count begins at its `end`."""

    topic: str
    topic_id: str
    partition: int
    counted: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A reader's statement: it has counted and published everything that was visible in its cluster at
    `time`.
    """

    time: int
    """NOTHING in the first heartbeat of a turn, which reports only that the turn has begun. NOTHING also in a
    heartbeat that reports only truncated logs, before the counts after the truncation."""
    tier: str
    number: int = 0
    """Number of the heartbeat, rising within a turn: a heartbeat that is sent again has no effect."""
    reported_through: int | None = None
    """Offset of the cluster's audit topic: every event that was reported before the offset is counted."""
    positions: Sequence[ReaderPosition] = field(default_factory=list)
    """Every partition, in a turn's first heartbeat with a time; later only partitions that appeared or
    vanished."""
    unreadable: Sequence[Unreadable] = field(default_factory=list)
    truncated: Sequence[Truncated] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a mirrored partition; `end` is the next origin offset after its last position batch."""

    cluster: str
    topic_id: str
    partition: int
    end: int | None


@dataclass(frozen=True, slots=True)
class ForeignCount:
    """Messages without an audit header in the window of their records' time."""

    window: int
    messages: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Messages of a partition in offsets [start, end)."""

    time: int
    tier: str
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    leader_epoch: int = -1
    """Leader epoch of the last batch before `end`; -1: not known, or a record of the previous version."""
    expired: SequenceRanges = field(default_factory=SequenceRanges)
    """Offsets of the range that had expired before they could be read."""
    origin: Origin | None = None
    copied_through: int | None = None
    """Offset before which every record lies before the origin's `end`; None if no end is known."""
    counts: SequenceCounts = field(default_factory=SequenceCounts)
    foreign: Sequence[ForeignCount] = field(default_factory=list)
    aborted: SequenceCounts = field(default_factory=SequenceCounts)
    """Messages of aborted transactions, without fingerprints. Consumers do not see them."""


@dataclass(frozen=True, slots=True)
class LoadNumber:
    """Number of a load of the warehouse, of its edition (a reading of its offsets), and of a part of its
    report.
    """

    load: int
    edition: int = 1
    part: int = 1
    parts: int = 1
    manifest: str = ""
    """URI of the manifest that lists its files."""
    sha256: str = ""
    """Hash of the manifest, as the manifest states it."""


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """End of a load in a partition: the offset at which the next load begins."""

    topic_id: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class HourRows:
    """Rows of one hour in the files of a load's edition."""

    hour: int
    """Start of the hour (ms); NOTHING for erased and uncounted rows whose hour is not known."""
    rows: int
    """Rows with and without an audit header."""
    erased: int = 0
    """Erased rows without a whole header: only the manifest has their number."""
    uncounted: int = 0
    """Rows without a whole header whose files `expire` deleted before they were counted, by the manifest."""


@dataclass(frozen=True, slots=True)
class UnkeyedRows:
    """Rows without a whole audit header in the window of their records' time."""

    window: int
    rows: int
    unfiled: int = 0
    """Rows among them that lie in no hour's partition."""


@dataclass(frozen=True, slots=True)
class RejectedMessages:
    """Messages that a load set aside, in one window or somewhere in the windows up to `last`."""

    window: int
    last: int
    messages: int
    keyed: int
    """Messages among them that have an audit header."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCount:
    """Contents of a load's files, as read back by the warehouse's reader."""

    time: int
    topic: str
    source: LoadNumber
    counts: SequenceCounts
    removed: SequenceCounts = field(default_factory=SequenceCounts)
    """Messages of the edition before that a later edition lacks; `counts` has the messages that it adds."""
    ends: Sequence[LoadEnd] = field(default_factory=list)
    """Offsets up to which the topic is loaded with this load; empty when they are not reported."""
    hours: Sequence[HourRows] | None = None
    """None in a record of the previous version, like `unkeyed`."""
    unkeyed: Sequence[UnkeyedRows] | None = None
    """Rows by window; for a later edition the difference from the edition before, which may be negative."""
    rejected: Sequence[RejectedMessages] = field(default_factory=list)
    """Messages that the edition set aside; the last part has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """Contents of some windows of a topic's published table, as any reader of the snapshot sees them."""

    time: int
    topic: str
    number: int
    """Ascends within a turn."""
    snapshot: int
    replaces: Sequence[int]
    """Windows whose earlier counts this record replaces; counts of other windows are added."""
    counts: SequenceCounts
    unkeyed: Sequence[UnkeyedRows] | None = None
    """None in a record of the previous version."""


@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """Problem that `millrace verify` has found in an hour's rows or, without an hour, in the whole topic."""

    hour: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Findings of the newest `millrace verify` of a topic."""

    time: int
    topic: str
    number: int
    """Ascends within a turn, in one series with the numbers of TableCount."""
    problems: Sequence[VerifyProblem]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseState:
    """State of a topic in the warehouse."""

    time: int
    topic: str
    number: int
    """Ascends within a turn, in one series with the numbers of TableCount."""
    load: int
    """Number of the newest load in the folder; 0 for none."""
    sha256: str
    """Hash of its manifest; empty for none."""
    editions: str
    """`editions_hash` of the folder; empty when that is not known."""
    exists: bool
    """True if the catalog has the published table."""
    trouble: str = ""
    """Reason for which the table cannot be counted; empty when it can."""
    live_through: int | None = None
    """Time before which every row that reached the warehouse is in the table's branch `live`; FOR_EVER while
    the branch lacks no row. None if the branch is off, or in a record of the previous version."""


ACCEPT, DISOWN, ACCEPT_REJECTED, REPLACE_LOADS = "accept", "disown", "accept-rejected", "replace-loads"
"""Kinds of decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An operator's decision about producers or loads.

    `accept` and `disown` concern one instance, or the instances of a service, optionally on one server.
    """

    time: int
    written: int
    """Time at which this record was written. The auditor writes a decision again before it expires."""
    id: str
    """Random name: a decision that is written again keeps it, and takes effect once."""
    kind: str
    who: str
    reason: str
    instance: int | None = None
    service: str | None = None
    server: str | None = None
    before: int = FOR_EVER
    """`accept` concerns instances whose newest hello or report is earlier. `disown` concerns instances of a
    service whose first one is earlier."""
    topic: str | None = None
    load: int = 0
    """Load with the rejected messages; first load to replace."""
    edition: int = 0
    sha256: str = ""
    """Hash of the manifest of the edition with the rejected messages, or of the first load to replace."""


def editions_hash(editions: Mapping[int, int]) -> str:
    """Return a hash of `editions`: the newest edition of each load that was read again."""
    lines = "".join(f"{load}.{edition}\n" for load, edition in sorted(editions.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


AuditRecord = (
    Hello | Report | Heartbeat | Count | LoadCount | TableCount | Verified | WarehouseState | Decision
)
OF_THE_WAREHOUSE = (LoadCount, TableCount, Verified, WarehouseState)
"""Kinds that only the warehouse's reader may write."""
SIGNED = (Count, Heartbeat, *OF_THE_WAREHOUSE, Decision)
"""Kinds that only a reader or, for decisions, the auditor may write, under a key of its turn."""
_KINDS: Mapping[str, type[AuditRecord]] = {f"Audit{kind.__name__}": kind for kind in (Hello, Report, *SIGNED)}
_NEW_FIELDS = {
    "AuditCount": [
        {"aborted"},
        {"aborted", "leaderEpoch", "strong"},
        {"aborted", "copiedThrough", "leaderEpoch", "strong"},
    ],
    "AuditHeartbeat": [{"leaderEpoch"}],
    "AuditLoadCount": [{"uncounted"}, {"uncounted", "hours", "unkeyed", "rejected"}],
    "AuditReport": [{"fingerprinted"}, {"fingerprinted", "strong", "failedStrong"}],
    "AuditTableCount": [{"unkeyed"}],
    "AuditWarehouseState": [{"liveThrough"}],
}
"""Kind -> for each older format of the record, newest first, the fields that it lacks at any depth."""


class NoAuditRecord(Exception):
    """A message that cannot be read as an audit record; the text is the reason."""


class OtherVersion:
    """An audit record in the form of another version of Millrace, which cannot be read here."""


Kind = type[AuditRecord] | type[OtherVersion]
_AVRO_NAMES = {
    "closed_through": "closedThrough",
    "copied_through": "copiedThrough",
    "failed_fingerprint": "failedFingerprint",
    "leader_epoch": "leaderEpoch",
    "live_through": "liveThrough",
    "reported_through": "reportedThrough",
    "topic_id": "topicId",
}
_FIELDS = {name: attribute for attribute, name in _AVRO_NAMES.items()}
_STRONG = {"fingerprint": "strong", "failedFingerprint": "failedStrong"}
"""Fields that hold one sum of fingerprints: its lowest 64 bits, and the rest if it is strong."""


def _to_avro(value: Any) -> Any:
    """Return a dataclass of this file as the record of its schema; dataclasses in its fields, too."""
    if value is None or isinstance(value, int | str | bytes):
        return value  # None only where the schema has a null: the previous version is never written
    if isinstance(value, SequenceRanges):
        return to_deltas(value)
    if isinstance(value, SequenceCounts):
        return value.to_avro()
    if isinstance(value, list | tuple):
        return [_to_avro(item) for item in value]
    record = {_AVRO_NAMES.get(f.name, f.name): _to_avro(getattr(value, f.name)) for f in fields(value)}
    for fast, strong in _STRONG.items():
        if fast in record:
            record[fast], record[strong] = split(record[fast])
    return record


def _from_avro(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass of this file, given the record of its schema."""
    record = {**record}
    for fast, strong in _STRONG.items():
        if strong in record:
            record[fast] = joined(record[fast], record.pop(strong))
    return {
        _FIELDS.get(name, name): _READERS[name](value) if name in _READERS and value is not None else value
        for name, value in record.items()
    }


def _read_ranges(flat: Sequence[int]) -> SequenceRanges:
    return merged(from_deltas(flat))


def _read_topic(name: str) -> str:
    check_topic_name(name)
    return name


def _read_topic_id(topic_id: str) -> str:
    if not 0 < len(topic_id) <= 32 or not (topic_id.isascii() and topic_id.isprintable()):
        raise ValueError(f"{topic_id!r} is no topic id")
    return topic_id


def _each(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda records: [kind(**_from_avro(record)) for record in records]


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "topic": _read_topic,
    "topicId": _read_topic_id,
    "acknowledged": _read_ranges,
    "failed": _read_ranges,
    "expired": _read_ranges,
    "windows": _each(ReportedWindow),
    "positions": _each(ReaderPosition),
    "unreadable": _each(Unreadable),
    "truncated": _each(Truncated),
    "foreign": _each(ForeignCount),
    "ends": _each(LoadEnd),
    "problems": _each(VerifyProblem),
    "hours": _each(HourRows),
    "unkeyed": _each(UnkeyedRows),
    "rejected": _each(RejectedMessages),
    "origin": lambda record: Origin(**_from_avro(record)),
    "source": lambda record: LoadNumber(**record),
    "counts": SequenceCounts.from_avro,
    "aborted": SequenceCounts.from_avro,
    "removed": SequenceCounts.from_avro,
}
"""Functions that check or convert a field, by the field's name in Avro. Other fields stay unchanged."""


class AuditCodec:
    """Encodes audit records as bytes and decodes them, with a schema registry."""

    def __init__(self, registry: SchemaRegistryClient) -> None:
        self._registry = registry
        self._prefixes: dict[str, bytes] = {}
        self._forms: dict[bytes, _Form | None] = {}
        self._unknown: set[bytes] = set()
        self._fetch: object = None

    def encode(self, record: AuditRecord, *, timeout_s: float | None = None) -> bytes:
        """Return the message for an audit topic.

        A kind's first record registers its schema, within `timeout_s`.
        """
        name = f"Audit{type(record).__name__}"
        if name not in self._prefixes:
            schema_id = self._registry.register(name, dict(schema_file(name)), timeout_s=timeout_s)
            self._prefixes[name] = b"\0" + schema_id.to_bytes(4, "big")
        out = BytesIO()
        out.write(self._prefixes[name])
        fastavro.schemaless_writer(out, _parsed(_Form(type(record), name)), _to_avro(record))
        return out.getvalue()

    def decode(self, message: bytes | None) -> AuditRecord | None:
        """Return the record in a message; None when the message is no audit record or cannot be read as one.

        Raise MillraceError when the registry does not answer: an audit record must not be mistaken for a
        foreign message.
        """
        try:
            return self.read(message)
        except NoAuditRecord:
            return None

    def read(self, message: bytes | None) -> AuditRecord:
        """Return the record in a message. Raise NoAuditRecord, with the reason, when there is none.

        Raise MillraceError when the registry does not answer.
        """
        form = self._form(message)
        if message is None or form is None:
            raise NoAuditRecord("it begins neither with the byte 1 nor with 0 and the id of an audit schema")
        if issubclass(form.kind, OtherVersion):
            raise NoAuditRecord("its kind or its schema is not one of this version")
        is_fixed = message[0] == _FIXED
        body = BytesIO(message[_FIXED_PREFIX_BYTES if is_fixed else PREFIX_BYTES :])
        try:
            record = fastavro.schemaless_reader(body, _parsed(form), None)
            read = form.kind(**_from_avro(record))  # type: ignore[arg-type]  # a record is read as a dict
        except Exception as error:  # an error would stop the process again after every restart
            raise NoAuditRecord(f"its body is no {form.name}: {str(error) or 'it ends early'}") from error
        if is_fixed and body.read(1):
            raise NoAuditRecord(f"bytes follow the end of its {form.name}")
        return read

    def kind(self, message: bytes | None, fetch: object = None) -> Kind | None:
        """Return the kind of an audit record, from the message's schema alone; None for any other message.

        A schema that the registry does not know may be registered later: it is looked up again, but only once
        for all messages of one `fetch` (any value but None).
        """
        form = self._form(message, fetch)
        return None if form is None else form.kind

    def _form(self, message: bytes | None, fetch: object = None) -> _Form | None:
        if message is None or len(message) < _FIXED_PREFIX_BYTES:
            return None
        if message[0] == _FIXED:
            return _FIXED_FORMS.get(message[1], _Form(OtherVersion))
        if len(message) <= PREFIX_BYTES or message[0] != 0:
            return None
        prefix = message[:PREFIX_BYTES]
        if prefix not in self._forms:
            if fetch is None or fetch != self._fetch:
                self._fetch, self._unknown = fetch, set()
            if prefix in self._unknown or len(self._unknown) >= MOST_UNKNOWN:
                return None
            try:
                self._forms[prefix] = _form_of(self._registry.schema(int.from_bytes(prefix, "big")))
            except UnknownSchema:
                self._unknown.add(prefix)
                if len(self._unknown) == MOST_UNKNOWN:
                    self._look_up_own()
                return None
        return self._forms[prefix]

    def _look_up_own(self) -> None:
        """Look up the ids of the schemas that ship with Millrace: made-up ids must not hide them."""
        for form in _FORMS:
            if version := self._registry.lookup(form.name, dict(form.schema)):
                self._forms[b"\0" + version.schema_id.to_bytes(4, "big")] = form


class _Form(NamedTuple):
    """A kind of record in the form of one version."""

    kind: Kind
    name: str = ""
    lacks: frozenset[str] = frozenset()
    """Fields of the current form that this form lacks."""

    @property
    def schema(self) -> Mapping[str, Any]:
        return schema_without(self.name, self.lacks)


_FORMS = [
    *(_Form(kind, name) for name, kind in _KINDS.items()),
    *(_Form(_KINDS[name], name, frozenset(each)) for name, older in _NEW_FIELDS.items() for each in older),
]
"""All forms that can be read."""


_FIXED, _FIXED_PREFIX_BYTES = 1, 2
"""First byte of a record without a schema id, and the size of its prefix: this byte and the record's kind."""
_FIXED_FORMS = {1: _Form(Hello, "AuditHello"), 2: _Form(Report, "AuditReport")}
"""Kind of a record without a schema id -> its form, which never changes. A new form gets a new number."""


def previous_schemas(name: str) -> list[Mapping[str, Any]]:
    """Return the schemas of an audit record in its older formats, newest first."""
    return [schema_without(name, lacks) for lacks in _NEW_FIELDS[name]]


def schema_without(name: str, lacks: Set[str]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = _without(schema_file(name), lacks)
    return schema


def _without(schema: Any, names: Set[str]) -> Any:
    """Return a schema without the fields of these names, at any depth."""
    if isinstance(schema, list):
        kept = [part for part in schema if not (isinstance(part, dict) and part.get("name") in names)]
        return [_without(part, names) for part in kept]
    if isinstance(schema, dict):
        return {key: _without(part, names) for key, part in schema.items()}
    return schema


def _form_of(schema: Any) -> _Form | None:
    """Return the form whose schema, apart from comments, ships with Millrace."""
    # A schema that only has the name could make a few bytes decode for ever.
    try:
        canonical = to_parsing_canonical_form(fastavro.parse_schema(schema))
    except Exception:  # as in `decode`
        return None
    for own in _FORMS:
        if canonical == to_parsing_canonical_form(_parsed(own)):
            return own
    parsed = schema if isinstance(schema, Mapping) else {}
    is_named_so = parsed.get("name") in _KINDS and parsed.get("namespace") == _NAMESPACE
    return _Form(OtherVersion) if is_named_so else None


@cache
def _parsed(form: _Form) -> Any:
    return fastavro.parse_schema(dict(form.schema))


def packed(load: LoadCount) -> bytes:
    """Return a load's record for the auditor's database.

    From it the auditor subtracts a load that is replaced.
    """
    return zlib.compress(json.dumps(_to_avro(load), separators=(",", ":")).encode())


def unpacked(content: bytes) -> LoadCount:
    """Read the output of `packed`, also from before an upgrade: missing fields have their defaults."""
    return LoadCount(**_from_avro(json.loads(zlib.decompress(content))))
