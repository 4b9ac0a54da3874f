"""A topic of changes of a database's rows, as Debezium writes it: each delete is a row, then a tombstone."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro

from millrace.records import Message

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.customers",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
                },
            ],
            "default": None,
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
DAY_MS = 86_400_000


def key_of(number: int) -> bytes:
    return b'{"id":%d}' % number


def changes(count: int, deletes: int, schema_id: int, start_ms: int) -> Iterator[Message]:
    """Changes within a day, of which the last ones are deletes, each followed by its tombstone."""
    for number in range(count):
        is_delete = number >= count - deletes
        customer = {"id": number, "name": f"customer {number}"}
        time = start_ms + number * DAY_MS // count
        change = {
            "before": customer if is_delete else None,
            "after": None if is_delete else customer,
            "op": "d" if is_delete else "c",
            "ts_ms": time,
        }
        body = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        body.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(body, SCHEMA, change)
        yield Message(time, key_of(number), body.getvalue())
        if is_delete:
            yield Message(time, key_of(number), None)


def broken(count: int, schema_id: int, time_ms: int) -> list[Message]:
    """Messages with a known schema id whose body ends too early."""
    return [
        Message(time_ms, b"broken %d" % n, b"\0" + schema_id.to_bytes(4, "big") + b"\2") for n in range(count)
    ]


def batches(messages: Sequence[Message], size: int = 500) -> Iterator[Sequence[Message]]:
    for first in range(0, len(messages), size):
        yield messages[first : first + size]
