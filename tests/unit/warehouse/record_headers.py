"""Events with record headers in memory, and loads as of the version before tables had columns for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from millrace.records import Message
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_warehouse import columns
from millrace_warehouse.history import iceberg_types, schemas
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.log import messages
from millrace_warehouse.log.formats import PLAIN_SCHEMAS, MessageFormat
from millrace_warehouse.storage import Storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID, START, MemoryLog, event, load_run
from tests.unit.warehouse.publish.publishing import H10, publish_in, table_of

FORMATS = ("avro", *PLAIN_SCHEMAS)
INSTANCE = 77
SENDER = ("_instance", "_sequence")


def with_header(message: Message, topic: str, sequence: int, time_ms: int) -> Message:
    """Return the message with an audit header as its record header."""
    header = HEADER_NAME, encode_header(topic_tag(topic), INSTANCE, sequence, time_ms)
    return dataclasses.replace(message, headers=(header,))


@contextmanager
def earlier_version() -> Iterator[None]:
    """Load as an earlier version does: without the columns of record headers."""
    own = [field for field in columns.OWN_FIELDS if field not in columns.SENDER_FIELDS]
    with pytest.MonkeyPatch.context() as patch:
        for module in (schemas, iceberg_types, messages):
            patch.setattr(module, "OWN_FIELDS", own)
        patch.setattr(messages, "_sender_columns", lambda rows, headers: [])
        yield


def check_table_gets_sender_columns(storage: Storage, catalog: Catalog, topic: str, format: str) -> None:
    """Publish an earlier version's load and one of events with record headers; read both from the table."""
    log = MemoryLog(1, topic)

    def pin(name: str, used: int) -> Pinned:
        folder = Topic(storage, name)
        held = schemas.pinned(folder, used)
        if held is None and format in PLAIN_SCHEMAS:
            held = schemas.plain_schema(folder, MessageFormat(format))
        held = held or schemas.first_schema(folder, SCHEMA_ID, SCHEMA)
        held = schemas.with_own_columns(folder, held, log.schemas.get)
        return Pinned.from_schema(held, lambda: log, log.schemas.get)

    def sent(sequence: int) -> Message:
        return event(sequence, START) if format == "avro" else Message(START, b"k", b"a line")

    def load_and_publish(run_id: str) -> list[dict[str, Any]]:
        assert load_topic(load_run(log, storage, run_id, pin=pin), topic).rows == 2
        publish_in(storage, catalog, H10, topic=topic)
        rows: list[dict[str, Any]] = table_of(catalog, topic).scan().to_arrow().to_pylist()
        return rows

    with earlier_version():
        log.append(0, [sent(0), sent(1)])
        assert [row.keys() & set(SENDER) for row in load_and_publish("earlier")] == [set(), set()]
    log.append(0, [with_header(sent(n), topic, n, START) for n in range(2)])
    rows = sorted(load_and_publish("now"), key=lambda row: row["_offset"])
    assert [(row["_instance"], row["_sequence"]) for row in rows] == [
        (None, None),
        (None, None),
        (INSTANCE, 0),
        (INSTANCE, 1),
    ]
    (report,) = verify(VerifyRun(storage=storage, catalog=catalog, rows=True), topic)
    assert report.problems == []
