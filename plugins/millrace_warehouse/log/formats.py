"""Formats of messages: a topic's first load pins one. Columns of messages without a schema.

avro            Avro after the registry's five bytes, by the schema that the bytes name
avro-unframed   Avro without these bytes: every message is written with the table's schema
json            JSON objects by the table's Avro schema, also after the five bytes of a JSON Schema
bytes, text     any message: the columns `value` and `headers`, without a schema in a registry
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.client.cluster_client import ClusterClient
from millrace.client.samples import newest_values
from millrace.errors import CorruptMessage, MillraceError
from millrace.records.framing import Frames, read_headers
from millrace.records.row_cursor import Faults
from millrace_audit.reports.event import HEADER_FIELD, EventHeader
from millrace_avro.columns import Slices
from millrace_avro.json_rows import JsonDecoder
from millrace_avro.schema import Node, Record, SchemaError, Union, arrow_type
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.columns import TIME
from millrace_warehouse.log.kinds import Look, name_format

AVRO, UNFRAMED, JSON = "avro", "avro-unframed", "json"
PLAIN_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    name: {
        "type": "record",
        "name": "Message",
        "fields": [
            {"name": "value", "type": type_},
            {
                "name": "headers",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Header",
                        "fields": [
                            {"name": "key", "type": "string"},
                            {"name": "value", "type": ["null", "bytes"]},
                        ],
                    },
                },
            },
        ],
    }
    for name, type_ in (("bytes", "bytes"), ("text", "string"))
}
"""Format without a schema in a registry -> its columns."""
_LOOKED_AT = 20
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The format of a topic's messages, and the field with their time."""

    name: str = AVRO
    """One of `topics_file.FORMATS`."""
    time: str = ""
    """Field with the time of an event without an audit header; empty for the record's time."""


AVRO_MESSAGES = MessageFormat()


def check_format(messages: MessageFormat, table: Record) -> None:
    """Raise SchemaError if messages of the format cannot fill the columns."""
    has_header = any(field.name == HEADER_FIELD and _is_audit_header(field.type) for field in table.fields)
    if messages.name == JSON:
        JsonDecoder(table)
    if messages.name in (JSON, UNFRAMED) and has_header:
        raise SchemaError(f"its field {HEADER_FIELD} is an audit header, which only framed Avro can have")
    if not messages.time:
        return
    if has_header:
        raise SchemaError(f"its audit header has the time of an event: name no other field ({messages.time})")
    field = next((field for field in table.fields if field.name == messages.time), None)
    if field is None or arrow_type(field.type) != TIME.type:
        raise SchemaError(f"it has no field {messages.time} with a timestamp for the time of an event")


def other_look(
    client: ClusterClient, topic: str, expected: str, knows: Callable[[int], object | None]
) -> Look | None:
    """Return what most of the topic's newest messages look like, or None if some fit the expected format.

    `knows` returns the Avro schema of an id, or None: with a known id a message is no Protocol Buffers.
    """
    values = list[bytes]()
    with suppress(CorruptMessage):  # reported when the records are read
        values = newest_values(client, topic, _LOOKED_AT)
    looks = Counter[Look]()
    for value in values:
        look = name_format(value)
        is_avro = look == Look.FRAMED_PROTOBUF and knows(int.from_bytes(value[1:5], "big")) is not None
        looks[Look.FRAMED_AVRO if is_avro else look] += 1
    if not looks or any(expected in look.formats for look in looks):
        return None
    return looks.most_common(1)[0][0]


def formats_of(look: Look) -> str:
    """Return the setting of a topic whose messages have this look, with its alternatives."""
    return "format = " + " or ".join(f'"{name}"' for name in look.formats)


def other_format(look: Look, format: str) -> str:
    """Return the advice to load rejected records in another format; empty if the topic's format fits.

    Text that was rejected is not UTF-8.
    """
    if format in look.formats and format != "text":
        return ""
    setting = 'format = "bytes"' if format in look.formats else formats_of(look)
    return f"the first looks like {look}: load them into a new warehouse, with {setting} for the topic"


def check_is_avro(client: ClusterClient, topic: str, knows: Callable[[int], object | None]) -> None:
    """Raise MillraceError if no newest message of the topic looks like Avro in Confluent's wire format."""
    look = other_look(client, topic, AVRO, knows)
    if look is not None:
        raise MillraceError(
            f"the newest messages of {topic} look like {look.plural}, and the load expects Avro: write"
            f" {formats_of(look)} for the topic in the file of topics, or give --format {look.formats[0]},"
            " then load again; --format avro loads them as Avro"
        )


def no_schema(
    client: ClusterClient, topic: str, holder: str, registry: SchemaRegistryClient, expected: str
) -> MillraceError:
    """Return the error that no schema is registered for `holder`, with what the topic's messages need."""
    look = other_look(client, topic, expected, registry.find_schema)
    other = (
        f"its newest messages look like {look.plural}: write {formats_of(look)} for the topic; or "
        if look
        else ""
    )
    draft = f"draft it with `millrace init schema {topic} --from-topic`, " if expected == JSON else ""
    return MillraceError(
        f"no schema is registered for {holder} at {registry.url}: {other}{draft}register it with"
        f" `millrace schemas apply`, or name its subject with --subject {topic}=SUBJECT, then load again"
    )


def _is_audit_header(node: Node) -> bool:
    if isinstance(node, Union) and node.is_optional and node.members:
        node = node.members[0]
    return isinstance(node, Record) and {*EventHeader._fields} <= {field.name for field in node.fields}


def plain_columns(frames: Frames, format: str) -> tuple[list[pa.Array], Faults]:
    """Return the columns of PLAIN_SCHEMAS for the good rows, and the faults of the other rows."""
    headers, faults = header_lists(frames)
    type_ = pa.string() if format == "text" else pa.binary()
    values = Slices(type_, frames.buffer, frames.value, frames.value + frames.value_size, None, "value")
    value = values.array(len(frames), faults)
    if faults:
        columns, _ = plain_columns(frames.select(np.flatnonzero(~faults.bad)), format)
        return columns, faults
    return [value, headers], faults


def header_lists(frames: Frames) -> tuple[pa.Array, Faults]:
    """Return the headers of each record; a record with malformed headers has none and is a fault."""
    faults = Faults(len(frames))
    some = np.flatnonzero(frames.header_count > 0).tolist()
    if not some and len(frames):  # `repeat` makes no empty array
        return pa.repeat(pa.scalar([], HEADERS), len(frames)), faults
    values: list[list[dict[str, Any]]] = [[] for _ in range(len(frames))]
    for row in some:
        try:
            values[row] = [{"key": key, "value": value} for key, value in read_headers(frames, row)]
        except CorruptMessage as error:
            faults.mark(np.array([row]), str(error))
    return pa.array(values, HEADERS), faults
