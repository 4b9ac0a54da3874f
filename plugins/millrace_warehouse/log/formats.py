"""Formats of messages: a topic's first load pins one. Columns of messages without a schema.

avro          Avro after the registry's five bytes, by the schema that the bytes name
json          JSON objects by the table's Avro schema, also after the five bytes of a JSON Schema
bytes, text   any message: the columns `value` and `headers`, without a schema in a registry
"""

from __future__ import annotations

from collections.abc import Mapping
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
from millrace_warehouse.columns import TIME
from millrace_warehouse.log.kinds import name_format

AVRO, JSON = "avro", "json"
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
_OTHER_FORMATS = {"JSON": ("JSON objects", JSON), "plain text": ("plain text", "text")}
"""Look of values, as `name_format` names it -> words for them, and the format that takes them."""
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
        if has_header:
            raise SchemaError(f"its field {HEADER_FIELD} is an audit header, which JSON objects cannot have")
    if not messages.time:
        return
    if has_header:
        raise SchemaError(f"its audit header has the time of an event: name no other field ({messages.time})")
    field = next((field for field in table.fields if field.name == messages.time), None)
    if field is None or arrow_type(field.type) != TIME.type:
        raise SchemaError(f"it has no field {messages.time} with a timestamp for the time of an event")


def check_is_avro(client: ClusterClient, topic: str) -> None:
    """Raise MillraceError if all of the topic's newest messages look like another format than Avro."""
    looks = set[str]()
    with suppress(CorruptMessage):  # reported when the records are read
        looks = {name_format(value) for value in newest_values(client, topic, _LOOKED_AT)}
    if len(looks) == 1 and (other := _OTHER_FORMATS.get(looks.pop())):
        what, format = other
        raise MillraceError(
            f"the newest messages of {topic} look like {what}, and the load expects Avro: write"
            f' format = "{format}" for the topic in the file of topics, or give --format {format}, then load'
            " again; --format avro loads them as Avro"
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
