"""The records on the audit topics as values, and their bytes.

Every one is Avro behind a schema id, like any event. Knows the schemas in `schemas/`, not what follows from
what is said. Times are ms since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from io import BytesIO
from typing import Any, Protocol

import fastavro

from millrace.installation import shipped
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.ranges import SequenceRanges, from_deltas, merged, to_deltas
from millrace_registry.client import UnknownSchema

OFFLINE, WAREHOUSE = "offline", "warehouse"
"""The tiers behind a cluster's own, which has the cluster's name."""

NOTHING = -(1 << 63)
"""As `closed_through`: no promise at all."""
FOR_EVER = (1 << 63) - 1
"""As `closed_through`: the instance has ended."""

_ID_BYTES = 5


class SchemaIds(Protocol):
    """What a registry is asked for here."""

    def schema(self, schema_id: int) -> Any: ...
    def register(self, subject: str, schema: Any, *, timeout_s: float | None = None) -> int: ...


@cache
def schema_file(name: str) -> Mapping[str, Any]:
    """The schema that ships with Millrace under that name: of an audit record or of one of its events."""
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

    @classmethod
    def from_avro(cls, record: Mapping[str, Any]) -> Hello:
        return cls(**_by_field(record))


@dataclass(frozen=True, slots=True)
class ReportedWindow:
    """Sequences of one topic and window; `failed` ones have an unknown outcome."""

    topic: str
    window: int
    acknowledged: SequenceRanges
    failed: SequenceRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of an instance's events since its report before; `number` counts from 0."""

    time: int
    cluster: str
    server: str
    service: str
    instance: int
    number: int
    closed_through: int
    windows: Sequence[ReportedWindow]

    @classmethod
    def from_avro(cls, record: Mapping[str, Any]) -> Report:
        windows = [
            ReportedWindow(
                window["topic"],
                window["window"],
                merged(from_deltas(window["acknowledged"])),
                merged(from_deltas(window["failed"])),
            )
            for window in record["windows"]
        ]
        return cls(**{**_by_field(record), "windows": windows})


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The next offset a reader will count in a partition."""

    topic: str
    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A reader has counted all that was visible in its cluster at `time`."""

    time: int
    cluster: str
    tier: str
    reader: int
    positions: Sequence[ReaderPosition]

    @classmethod
    def from_avro(cls, record: Mapping[str, Any]) -> Heartbeat:
        positions = [
            ReaderPosition(p["topic"], p["topicId"], p["partition"], p["offset"]) for p in record["positions"]
        ]
        return cls(**{**_by_field(record), "positions": positions})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets [start, end) of a partition, counted by one reader."""

    reader: int
    cluster: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LoadNumber:
    """One load of the warehouse, which reading of its offsets, and which part of what is said of it."""

    load: int
    edition: int = 1
    part: int = 1
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a tier holds of a topic, for one source."""

    time: int
    tier: str
    topic: str
    source: OffsetRange | LoadNumber
    foreign: int
    counts: SequenceCounts
    expired: int = 0
    """How many offsets of the range had expired before they could be read."""
    removed: SequenceCounts = field(default_factory=SequenceCounts)
    """Of a later edition of a load: what it has less than the one before; `counts` is what it has more."""

    @classmethod
    def from_avro(cls, record: Mapping[str, Any]) -> Count:
        part = record["source"]
        source = LoadNumber(**part) if "load" in part else OffsetRange(**_by_field(part))
        counts = {name: SequenceCounts.from_avro(record[name]) for name in ("counts", "removed")}
        return cls(**{**_by_field(record), **counts, "source": source})


_AVRO_NAMES = {"closed_through": "closedThrough", "topic_id": "topicId"}
_FIELDS = {name: attribute for attribute, name in _AVRO_NAMES.items()}
_COLUMNS = {
    kind: [(each.name, _AVRO_NAMES.get(each.name, each.name)) for each in fields(kind)]
    for kind in (Hello, ReportedWindow, Report, ReaderPosition, Heartbeat, OffsetRange, LoadNumber, Count)
}
"""Each field of a dataclass of this file, and its name in the schema."""
_SOURCES = {OffsetRange: "millrace.audit.OffsetRange", LoadNumber: "millrace.audit.Load"}


def _by_field(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_FIELDS.get(name, name): value for name, value in record.items()}


def _avro(value: Any) -> Any:
    """A dataclass of this file as the record of its schema, and likewise what it holds."""
    if isinstance(value, int | str):
        return value
    if isinstance(value, SequenceRanges):
        return to_deltas(value)
    if isinstance(value, SequenceCounts):
        return value.to_avro()
    if isinstance(value, list | tuple):
        return [_avro(item) for item in value]
    record = {name: _avro(getattr(value, attribute)) for attribute, name in _COLUMNS[type(value)]}
    union_branch = _SOURCES.get(type(value))
    return (union_branch, record) if union_branch else record


AuditRecord = Hello | Report | Heartbeat | Count
_KINDS: Mapping[str, type[AuditRecord]] = {
    "AuditHello": Hello,
    "AuditReport": Report,
    "AuditHeartbeat": Heartbeat,
    "AuditCount": Count,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class AuditCodec:
    """Audit records to bytes and back, through a schema registry."""

    def __init__(self, registry: SchemaIds) -> None:
        self._registry = registry
        self._prefixes: dict[str, bytes] = {}
        self._writers: dict[int, tuple[str, Any] | None] = {}

    def encode(self, record: AuditRecord, *, timeout_s: float | None = None) -> bytes:
        """The message for an audit topic; the first record of a kind registers its schema, in that time."""
        name = _NAMES[type(record)]
        schema = _parsed(name)
        if name not in self._prefixes:
            schema_id = self._registry.register(name, dict(schema_file(name)), timeout_s=timeout_s)
            self._prefixes[name] = b"\0" + schema_id.to_bytes(4, "big")
        out = BytesIO()
        out.write(self._prefixes[name])
        fastavro.schemaless_writer(out, schema, _avro(record))
        return out.getvalue()

    def decode(self, message: bytes | None) -> AuditRecord | None:
        """The record in a message; None for what is no audit record or cannot be read as one.

        A registry that does not answer raises: what it would have told must not be taken for foreign.
        """
        if message is None or len(message) <= _ID_BYTES or message[0] != 0:
            return None
        schema_id = int.from_bytes(message[1:_ID_BYTES], "big")
        if schema_id not in self._writers:
            self._writers[schema_id] = self._writer(schema_id)
        if (writer := self._writers[schema_id]) is None:
            return None
        name, schema = writer
        try:
            record = fastavro.schemaless_reader(BytesIO(message[_ID_BYTES:]), schema, _parsed(name))
            return _KINDS[name].from_avro(record)  # type: ignore[arg-type]  # a record schema yields a dict
        except Exception:  # whoever choked on it would choke on it again after every restart
            return None

    def _writer(self, schema_id: int) -> tuple[str, Any] | None:
        try:
            schema = self._registry.schema(schema_id)
        except UnknownSchema:
            return None
        for name in _KINDS:
            if isinstance(schema, dict) and _full_name(schema) == _full_name(schema_file(name)):
                try:
                    return name, fastavro.parse_schema(schema)
                except Exception:  # as in `decode`
                    return None
        return None


def _full_name(schema: Mapping[str, Any]) -> str:
    name = str(schema.get("name", ""))
    return name if "." in name else f"{schema.get('namespace', '')}.{name}"


@cache
def _parsed(name: str) -> Any:
    return fastavro.parse_schema(dict(schema_file(name)))
