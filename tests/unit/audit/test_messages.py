from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from io import BytesIO
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.fingerprints import added, split, strong_fingerprint
from millrace_audit.reports.messages import (
    FOR_EVER,
    MOST_UNKNOWN,
    NOTHING,
    AuditCodec,
    AuditRecord,
    Count,
    ForeignCount,
    Heartbeat,
    Hello,
    HourRows,
    LoadCount,
    LoadEnd,
    LoadNumber,
    Origin,
    OtherVersion,
    ReaderPosition,
    RejectedMessages,
    Report,
    ReportedWindow,
    TableCount,
    Truncated,
    UnkeyedRows,
    Unreadable,
    WarehouseState,
    editions_hash,
    packed,
    previous_schemas,
    schema_file,
    unpacked,
)
from millrace_audit.reports.ranges import SequenceRanges, merged
from millrace_registry.client import (
    RegisteredVersion,
    RegistryUnavailable,
    SchemaRegistryClient,
    UnknownSchema,
)

WHO: dict[str, Any] = {"cluster": "dc1", "server": "web-1", "service": "shop", "instance": (1 << 63) - 1}


class Ids(SchemaRegistryClient):
    """A registry's numbers without a registry."""

    def __init__(self) -> None:
        super().__init__("http://nobody")
        self.schemas: dict[int, Any] = {}

    def schema(self, schema_id: int) -> Any:
        if schema_id not in self.schemas:
            raise UnknownSchema(f"no schema {schema_id}")
        return self.schemas[schema_id]

    def register(self, subject: str, schema: Any, *, timeout_s: float | None = None) -> int:
        self.schemas[len(self.schemas) + 1] = schema
        return len(self.schemas)

    def lookup(self, subject: str, schema: Any) -> RegisteredVersion | None:
        found = (number for number, known in self.schemas.items() if known == schema)
        return next((RegisteredVersion(number, 1, schema) for number in found), None)


def counts(fingerprint: int = (1 << 63) - 1) -> SequenceCounts:
    found = SequenceCounts()
    found.add("web-1", "shop", 5, 600_000, 0, 99, fingerprint)
    found.add("web-1", "shop", 5, 600_000, 40, 41)
    return found


def unmarked() -> SequenceCounts:
    """As a load counts: it takes no fingerprints."""
    return counts(0)


STRONG = strong_fingerprint(b"a message")
ORIGIN = Origin("dc1", "cd", 3, None)
RECORDS: list[AuditRecord] = [
    Hello(time=1, topic="PageView", seal=b"s" * 32, **WHO),
    Report(
        time=2,
        number=3,
        key=b"k" * 16,
        seal=b"t" * 32,
        closed_through=FOR_EVER,
        windows=[
            ReportedWindow(
                "PageView",
                600_000,
                SequenceRanges([(0, 8), (10, 11)]),
                SequenceRanges([(9, 9)]),
                -(1 << 63),
                5,
            )
        ],
        **WHO,
    ),
    Heartbeat(time=NOTHING, tier="dc1"),
    Heartbeat(
        time=4,
        tier="dc1",
        number=7,
        reported_through=1 << 40,
        positions=[ReaderPosition("PageView", "ab", 0, 77, 3), ReaderPosition("PageView", "ab", 1, None)],
        unreadable=[Unreadable("PageView", "ab", 2, 9, "a batch is damaged")],
        truncated=[Truncated("PageView", "ab", 3, 9, 5)],
    ),
    Count(
        time=6,
        tier="offline",
        topic="PageView",
        topic_id="ab",
        partition=3,
        start=100,
        end=1 << 40,
        expired=SequenceRanges([(100, 200)]),
        origin=ORIGIN,
        copied_through=200,
        counts=counts(),
        foreign=[ForeignCount(600_000, 7, -8)],
    ),
    Count(
        time=6,
        tier="dc1",
        topic="PageView",
        topic_id="cd",
        partition=3,
        start=0,
        end=1,
        origin=replace(ORIGIN, end=9),
    ),
    LoadCount(time=5, topic="PageView", source=LoadNumber(7), counts=unmarked(), hours=[], unkeyed=[]),
    LoadCount(
        time=6,
        topic="PageView",
        counts=unmarked(),
        source=LoadNumber(7, 2),
        removed=unmarked(),
        ends=[LoadEnd("ab", 3, 9)],
        hours=[HourRows(0, 120, 3)],
        unkeyed=[UnkeyedRows(600_000, -4, 1)],
        rejected=[RejectedMessages(600_000, 1_200_000, 3, 1, "no value")],
    ),
    TableCount(
        time=7,
        topic="PageView",
        number=8,
        snapshot=9,
        replaces=[600_000],
        counts=unmarked(),
        unkeyed=[UnkeyedRows(600_000, 4)],
    ),
    WarehouseState(
        time=8, topic="PageView", number=9, load=7, sha256="ab", editions=editions_hash({7: 2}), exists=True
    ),
    WarehouseState(
        time=8,
        topic="PageView",
        number=10,
        load=7,
        sha256="ab",
        editions="",
        exists=True,
        live_through=600_000,
    ),
    Report(
        time=2,
        number=3,
        key=b"k" * 16,
        seal=b"t" * 32,
        closed_through=FOR_EVER,
        windows=[
            ReportedWindow(
                "PageView",
                0,
                SequenceRanges([(0, 0)]),
                SequenceRanges([(1, 1)]),
                STRONG,
                added(STRONG, STRONG),
            )
        ],
        **WHO,
    ),
    Count(
        time=6,
        tier="dc1",
        topic="PageView",
        topic_id="cd",
        partition=3,
        start=0,
        end=1,
        counts=counts(STRONG),
        foreign=[ForeignCount(600_000, 1, STRONG)],
        aborted=unmarked(),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_is_read_back_as_it_was_written(record: AuditRecord) -> None:
    codec = AuditCodec(Ids())
    assert codec.decode(codec.encode(record)) == record


def test_a_record_is_read_by_someone_who_did_not_write_it() -> None:
    ids = Ids()
    message = AuditCodec(ids).encode(RECORDS[0])
    assert AuditCodec(ids).decode(message) == RECORDS[0]


@pytest.mark.parametrize(
    "message", [None, b"", b"\0\0\0\0", b"plain text", b"\0\0\0\0\1\xff", b"\0\0\0\0\x63abc"]
)
def test_what_is_no_audit_record_is_passed_over(message: bytes | None) -> None:
    ids = Ids()
    codec = AuditCodec(ids)
    codec.encode(RECORDS[1])
    assert codec.decode(message) is None


def test_a_message_of_another_schema_is_passed_over() -> None:
    ids = Ids()
    page_view = ids.register("PageView", dict(schema_file("PageView")))
    assert AuditCodec(ids).decode(b"\0" + page_view.to_bytes(4, "big") + b"abc") is None


def test_a_registry_that_does_not_answer_is_not_taken_for_a_foreign_message() -> None:
    class Silent(Ids):
        def schema(self, schema_id: int) -> Any:
            raise RegistryUnavailable("nobody there")

    message = AuditCodec(Ids()).encode(RECORDS[0])
    with pytest.raises(RegistryUnavailable):
        AuditCodec(Silent()).decode(message)


@pytest.mark.parametrize(
    "schema",
    [
        {**schema_file("AuditReport"), "namespace": "somebody.else"},
        {**schema_file("AuditReport"), "fields": [{"name": "time", "type": "string"}]},
        {**schema_file("AuditReport"), "fields": [{"name": "number", "type": "long"}]},
        {"type": "record", "name": "AuditReport", "namespace": "millrace.audit"},
    ],
)
def test_a_schema_that_only_has_the_name_of_an_audit_record_is_passed_over(schema: dict[str, Any]) -> None:
    ids = Ids()
    message = AuditCodec(ids).encode(RECORDS[1])
    imposter = ids.register("AuditReport", schema)
    assert AuditCodec(ids).decode(b"\0" + imposter.to_bytes(4, "big") + message[5:]) is None


def test_a_record_of_another_version_is_told_from_what_is_no_audit_record() -> None:
    ids, columns = Ids(), schema_file("AuditHello")["fields"]
    older = ids.register("AuditHello", {**schema_file("AuditHello"), "fields": columns[:-1]})
    message = b"\0" + older.to_bytes(4, "big") + b"abc"
    codec = AuditCodec(ids)
    assert codec.kind(message) is OtherVersion
    assert codec.decode(message) is None


def of_the_version_before(record: Count | LoadCount | TableCount, ids: Ids) -> bytes:
    """The message of a record as the version before wrote it: without the fields that are new."""
    name = f"Audit{type(record).__name__}"
    return written_as(previous_schemas(name)[-1], record, ids)


def written_as(schema: Mapping[str, Any], record: Count | LoadCount | TableCount, ids: Ids) -> bytes:
    out = BytesIO()
    written = {"source": {"load": 7}, "expired": [], **vars_of(record), "counts": record.counts.to_avro()}
    written["topicId"] = written.get("topic_id")
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), written)
    return b"\0" + ids.register(str(schema["name"]), dict(schema)).to_bytes(4, "big") + out.getvalue()


def vars_of(record: Count | LoadCount | TableCount | WarehouseState) -> dict[str, Any]:
    simple = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in simple.items() if isinstance(value, int | str | list)}


def test_records_of_the_version_before_are_read_and_say_nothing_of_what_is_new() -> None:
    ids = Ids()
    load = replace(cast(LoadCount, RECORDS[6]), hours=None, unkeyed=None)
    table = replace(cast(TableCount, RECORDS[8]), unkeyed=None)
    count = replace(cast(Count, RECORDS[5]), origin=None, foreign=[])
    for record in (count, load, table):
        schemas = previous_schemas(f"Audit{type(record).__name__}")
        for schema in schemas[1:] if record is load else schemas:
            assert AuditCodec(ids).decode(written_as(schema, record, ids)) == record


def test_hours_of_the_version_before_have_no_uncounted_rows() -> None:
    ids, old = Ids(), BytesIO()
    hours = [HourRows(3_600_000, 7, 2, 1)]
    new = BytesIO(AuditCodec(ids).encode(replace(cast(LoadCount, RECORDS[7]), hours=hours))[5:])
    written = fastavro.schemaless_reader(
        new, fastavro.parse_schema(dict(schema_file("AuditLoadCount"))), None
    )
    schema = dict(previous_schemas("AuditLoadCount")[0])
    fastavro.schemaless_writer(old, fastavro.parse_schema(schema), written)
    schema_id = ids.register("AuditLoadCount", schema)
    found = AuditCodec(ids).decode(b"\0" + schema_id.to_bytes(4, "big") + old.getvalue())
    assert found == replace(cast(LoadCount, RECORDS[7]), hours=[HourRows(3_600_000, 7, 2)])


@pytest.mark.parametrize("record", [RECORDS[1], RECORDS[-2]])
@pytest.mark.parametrize("schema", previous_schemas("AuditReport"))
def test_a_report_of_the_version_before_has_the_fingerprints_that_its_schema_has(
    record: AuditRecord, schema: Mapping[str, Any]
) -> None:
    ids, old = Ids(), BytesIO()
    new = BytesIO(AuditCodec(ids).encode(record)[5:])
    current = fastavro.parse_schema(dict(schema_file("AuditReport")))
    written = fastavro.schemaless_reader(new, current, None)
    fastavro.schemaless_writer(old, fastavro.parse_schema(dict(schema)), written)
    schema_id = ids.register("AuditReport", dict(schema))
    found = AuditCodec(ids).decode(b"\0" + schema_id.to_bytes(4, "big") + old.getvalue())
    assert isinstance(found, Report)
    assert isinstance(record, Report)
    assert found.fingerprinted
    (there,), (window,) = found.windows, record.windows
    has_strong = "failedStrong" in str(schema)
    assert there.acknowledged == window.acknowledged
    for read, sent in (
        (there.fingerprint, window.fingerprint),
        (there.failed_fingerprint, window.failed_fingerprint),
    ):
        assert read == (sent if has_strong else split(sent)[0])


def test_a_heartbeat_of_the_version_before_has_positions_without_an_epoch() -> None:
    ids, out = Ids(), BytesIO()
    position = {"topic": "PageView", "topicId": "ab", "partition": 0, "offset": 77}
    schema = dict(previous_schemas("AuditHeartbeat")[0])
    written = {"time": 4, "tier": "dc1", "positions": [position]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), written)
    message = b"\0" + ids.register("AuditHeartbeat", schema).to_bytes(4, "big") + out.getvalue()
    beat = AuditCodec(ids).decode(message)
    assert isinstance(beat, Heartbeat)
    assert beat.positions == [ReaderPosition("PageView", "ab", 0, 77, -1)]


def test_a_state_of_the_version_before_says_nothing_of_branch_live() -> None:
    ids, out = Ids(), BytesIO()
    state = WarehouseState(time=1, topic="PageView", number=2, load=3, sha256="ab", editions="", exists=True)
    schema = dict(previous_schemas("AuditWarehouseState")[0])
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), vars_of(state) | {"exists": True})
    message = b"\0" + ids.register("AuditWarehouseState", schema).to_bytes(4, "big") + out.getvalue()
    assert AuditCodec(ids).decode(message) == state


def test_made_up_schema_ids_hide_no_record_of_the_version_before() -> None:
    ids = Ids()
    message = of_the_version_before(cast(LoadCount, RECORDS[6]), ids)
    codec = AuditCodec(ids)
    for number in range(1000, 1000 + 2 * MOST_UNKNOWN):
        assert codec.kind(b"\0" + number.to_bytes(4, "big") + b"x", 1) is None
    assert codec.kind(message, 1) is LoadCount


def test_a_load_that_is_kept_comes_back_as_it_was_told() -> None:
    for record in RECORDS[6:8]:
        assert unpacked(packed(cast(LoadCount, record))) == record


def test_a_schema_that_was_unknown_once_is_asked_for_again_by_the_next_fetch() -> None:
    ids = Ids()
    message = AuditCodec(ids).encode(RECORDS[0])
    schema, reader = ids.schemas.pop(1), AuditCodec(ids)
    assert reader.kind(message, 1) is None  # somebody has used the id before there was one
    ids.schemas[1] = schema
    assert reader.kind(message, 1) is None
    assert reader.kind(message, 2) is Hello
    assert reader.decode(message) == RECORDS[0]


def test_of_made_up_schema_ids_a_fetch_asks_for_a_bounded_number() -> None:
    asked: list[int] = []

    class Asked(Ids):
        def schema(self, schema_id: int) -> Any:
            asked.append(schema_id)
            return super().schema(schema_id)

    codec = AuditCodec(Asked())
    for number in range(2 * MOST_UNKNOWN):
        assert codec.kind(b"\0" + number.to_bytes(4, "big") + b"x", 1) is None
    assert len(asked) == MOST_UNKNOWN


def test_made_up_schema_ids_hide_no_record_of_the_same_fetch() -> None:
    ids = Ids()
    message, codec = AuditCodec(ids).encode(RECORDS[0]), AuditCodec(ids)
    for number in range(1000, 1000 + 2 * MOST_UNKNOWN):
        assert codec.kind(b"\0" + number.to_bytes(4, "big") + b"x", 1) is None
    assert codec.kind(message, 1) is Hello


def test_a_schema_with_a_field_too_many_is_no_audit_record() -> None:
    """An array of nulls takes no bytes: a few of them could say that 2^50 follow."""
    ids = Ids()
    endless = {"name": "more", "type": {"type": "array", "items": "null"}}
    imposter = ids.register("x", {**schema_file("AuditHello"), "fields": [endless]})
    message = b"\0" + imposter.to_bytes(4, "big") + bytes.fromhex("8080808080808004")
    assert AuditCodec(ids).decode(message) is None


@pytest.mark.parametrize(
    "record",
    [
        replace(cast(Hello, RECORDS[0]), topic="x\0y"),
        replace(cast(Hello, RECORDS[0]), topic="x" * 250),
        replace(cast(Count, RECORDS[4]), topic_id="a" * 33),
        replace(cast(LoadCount, RECORDS[7]), ends=[LoadEnd("", 3, 9)]),
    ],
    ids=["NUL", "long", "id", "no id"],
)
def test_a_record_of_a_topic_that_cannot_be_there_is_passed_over(record: AuditRecord) -> None:
    codec = AuditCodec(Ids())
    assert codec.decode(codec.encode(record)) is None


class NoRegistry(SchemaRegistryClient):
    """A registry that must not be needed."""

    def __init__(self) -> None:
        super().__init__("http://nobody")

    def schema(self, schema_id: int) -> Any:
        raise AssertionError("a record without a schema id needs no registry")


LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RANGES = st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 40)), max_size=4).map(
    lambda ranges: merged((first, first + more) for first, more in ranges)
)
SUMS = LONGS | st.binary(max_size=40).map(strong_fingerprint)
WHO_EVER = {"time": LONGS, "cluster": NAMES, "server": NAMES, "service": NAMES, "instance": LONGS}
SEALS = st.binary(min_size=32, max_size=32)
HELLOS = st.builds(Hello, **WHO_EVER, topic=st.just("PageView"), closed_through=LONGS, seal=SEALS)
REPORTS = st.builds(
    Report,
    **WHO_EVER,
    number=LONGS,
    key=st.binary(min_size=16, max_size=16),
    seal=SEALS,
    closed_through=LONGS,
    fingerprinted=st.booleans(),
    windows=st.lists(
        st.builds(ReportedWindow, st.just("PageView"), LONGS, RANGES, RANGES, SUMS, SUMS), max_size=3
    ),
)


def without_a_schema_id(record: Hello | Report) -> bytes:
    body = AuditCodec(Ids()).encode(record)[5:]
    return (b"\1\1" if isinstance(record, Hello) else b"\1\2") + body


@given(HELLOS | REPORTS)
def test_producers_records_are_read_without_a_schema_id_and_no_cut_of_their_bytes_is_one(
    record: Hello | Report,
) -> None:
    codec, message = AuditCodec(NoRegistry()), without_a_schema_id(record)
    assert codec.kind(message) is type(record)
    assert codec.decode(message) == record
    assert [cut for cut in range(len(message)) if codec.decode(message[:cut]) is not None] == []
    assert codec.decode(message + b"\0") is None, "the body is the rest of the message"


@given(st.binary(max_size=200))
def test_any_bytes_without_a_schema_id_are_decoded_or_refused(body: bytes) -> None:
    codec = AuditCodec(NoRegistry())
    for start, kind in ((b"\1\1", Hello), (b"\1\2", Report)):
        assert codec.kind(start + body) is kind
        codec.decode(start + body)


@pytest.mark.parametrize("message", [b"\1\0", b"\1\3", b"\1\xff" + b"x" * 100])
def test_a_record_of_a_later_kind_is_told_from_what_is_no_audit_record(message: bytes) -> None:
    codec = AuditCodec(NoRegistry())
    assert codec.kind(message) is OtherVersion
    assert codec.decode(message) is None


@pytest.mark.parametrize("message", [b"\1", b"\2", b"\2\1abc"])
def test_another_first_byte_is_no_audit_record(message: bytes) -> None:
    codec = AuditCodec(NoRegistry())
    assert (codec.kind(message), codec.decode(message)) == (None, None)
