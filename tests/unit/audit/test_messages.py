from __future__ import annotations

from typing import Any

import pytest

from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import (
    FOR_EVER,
    AuditCodec,
    AuditRecord,
    Count,
    Heartbeat,
    Hello,
    LoadNumber,
    OffsetRange,
    ReaderPosition,
    Report,
    ReportedWindow,
    schema_file,
)
from millrace_audit.reports.ranges import SequenceRanges
from millrace_registry.client import RegistryUnavailable, SchemaRegistryClient, UnknownSchema

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


def counts() -> SequenceCounts:
    found = SequenceCounts()
    found.add("web-1", "shop", 5, 600_000, 0, 99)
    found.add("web-1", "shop", 5, 600_000, 40, 41)
    return found


RECORDS: list[AuditRecord] = [
    Hello(time=1, topic="PageView", **WHO),
    Report(
        time=2,
        number=3,
        closed_through=FOR_EVER,
        windows=[
            ReportedWindow("PageView", 600_000, SequenceRanges([(0, 8), (10, 11)]), SequenceRanges([(9, 9)]))
        ],
        **WHO,
    ),
    Heartbeat(
        time=4, cluster="dc1", tier="dc1", reader=9, positions=[ReaderPosition("PageView", "ab", 0, 77)]
    ),
    Count(time=5, tier="warehouse", topic="PageView", source=LoadNumber(7), foreign=0, counts=counts()),
    Count(
        time=6,
        tier="offline",
        topic="PageView",
        foreign=2,
        expired=3,
        counts=counts(),
        source=OffsetRange(reader=9, cluster="offline", topic_id="ab", partition=3, start=100, end=1 << 40),
    ),
    Count(
        time=6,
        tier="warehouse",
        topic="PageView",
        foreign=0,
        counts=counts(),
        source=LoadNumber(7, 2),
        removed=counts(),
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
