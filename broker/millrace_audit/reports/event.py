"""An event's value: the bytes of one event, for most schemas with its audit header in front.

    0x00, schema id (4 bytes, big endian), Avro body
    body := AuditHeader {time: long, server: string, service: string, instance: long, sequence: long}, fields

The header is the first field of such a schema, so a reader finds it without the rest of the schema. An event
of any other schema has its audit header among the record's headers (`record_header.py`). This module reads
one message at a time, and uses neither topics nor brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple, cast

import fastavro

from millrace.errors import CorruptMessage, MillraceError
from millrace.records.messages import read_varint, write_bytes, write_varint
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.misfit import misfit

PREFIX_BYTES = 5
MAX_NAME_BYTES = 255
"""Longest name of a server or service. A message with a longer name is not audited, so counts stay small."""
HEADER_FIELD = "header"
_INT_BOUNDS = {"int": 1 << 31, "long": 1 << 63}
_UNCHECKED = {"null": (type(None),), "boolean": (bool,), "float": (int, float), "double": (int, float)}
"""Plain types of which fastavro's writer takes any value."""
_INFINITE = re.compile(rb"\0\0\x80[\x7f\xff]")
"""Infinity in Avro's `float`, which fastavro's writer also writes for a finite number that is too large."""
_PLAIN = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


class EventHeader(NamedTuple):
    """Sender and number of an event, and its time in ms."""

    time: int
    server: str
    service: str
    instance: int
    sequence: int


_HEADER_FIELDS = dict.fromkeys(EventHeader._fields, "long") | {"server": "string", "service": "string"}


class NotAudited(Exception):
    """A message that does not begin with an audit header."""


def has_header(schema: Any) -> bool:
    """Return True if a schema's first field is an AuditHeader, so that `read_header` may read
    its messages.
    """
    if not isinstance(schema, Mapping) or not schema.get("fields"):
        return False
    field = schema["fields"][0]
    header = field["type"]
    if field["name"] != HEADER_FIELD or not isinstance(header, Mapping):
        return False
    kinds = {f["name"]: f["type"] for f in header.get("fields", ())}
    plain = {name: kind["type"] if isinstance(kind, Mapping) else kind for name, kind in kinds.items()}
    return list(plain.items())[: len(_HEADER_FIELDS)] == list(_HEADER_FIELDS.items())


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    size, position = read_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise NotAudited("a name that is longer than its message")
    return data[position:end].decode(), end


def read_header(message: bytes) -> EventHeader:
    """Return the header of one message. Raise NotAudited when the message has none.

    The schema id is ignored.
    """
    try:
        time, position = read_varint(message, PREFIX_BYTES)
        server, position = _read_string(message, position)
        service, position = _read_string(message, position)
        instance, position = read_varint(message, position)
        sequence, _ = read_varint(message, position)
    except (IndexError, UnicodeDecodeError, CorruptMessage) as error:
        raise NotAudited("it ends inside its header") from error
    if message[0] != 0 or sequence < 0:
        raise NotAudited("it is no Avro message after a schema id")
    if not all(-(1 << 63) <= number < 1 << 63 for number in (time, instance, sequence)):
        raise NotAudited("a number of more than 64 bits")
    return EventHeader(time, server, service, instance, sequence)


def counted_header(message: bytes) -> EventHeader | None:
    """Return the header by which readers count a message whose schema has a header.

    None if it is broken or too long.
    """
    try:
        header = read_header(message)
    except NotAudited:
        return None
    names = (header.server.encode(), header.service.encode())
    is_counted = max(map(len, names)) <= MAX_NAME_BYTES and header.time >= -(1 << 63) + WINDOW_MS
    return header if is_counted else None


def instance_bytes(server: str, service: str, instance: int) -> bytes:
    """Return the bytes between time and sequence in the header of every message of one instance."""
    out = bytearray()
    write_bytes(out, server.encode())
    write_bytes(out, service.encode())
    write_varint(out, instance)
    return bytes(out)


class _Schema:
    """A schema under its registry id, and the checks that fastavro's writer does not make."""

    def __init__(self, schema: Mapping[str, Any], schema_id: int, first: int) -> None:
        """An event has the schema's fields from `first` on."""
        self.name = str(schema.get("name", "?"))
        self._named: dict[str, Any] = {}
        self._schema = cast(Any, fastavro.parse_schema(dict(schema), self._named))
        self._prefix = b"\0" + schema_id.to_bytes(4, "big")
        self._fields: list[Any] = self._schema["fields"][first:]
        plain = [(f["name"], f["type"]) for f in self._fields if isinstance(f["type"], str)]
        self._numbers = [(name, _INT_BOUNDS[kind]) for name, kind in plain if kind in _INT_BOUNDS]
        self._unchecked = [(name, _UNCHECKED[kind]) for name, kind in plain if kind in _UNCHECKED]
        self._is_flat = all(_is_plain(f["type"]) for f in self._fields)
        self._has_floats = "'float'" in str(self._schema)

    def _fits(self, event: Mapping[str, Any]) -> bool:
        """Return True if only fastavro's writer has to check the event.

        The writer truncates a float to an integer, writes an int of any size, and takes any value as a
        boolean, a text as a float, and anything as null.
        """
        if not self._is_flat:
            return False
        for name, bound in self._numbers:
            value = event.get(name)
            if value is not None and not (type(value) is int and -bound <= value < bound):
                return False
        for name, types in self._unchecked:
            if name in event:
                value = event[name]
                if not (type(value) in types or (float in types and isinstance(value, float))):
                    return False
        return True

    def _checked(self, message: bytes, event: Mapping[str, Any]) -> bytes:
        """Return the message. Raise OverflowError if a finite number became infinite in it."""
        if self._has_floats and _INFINITE.search(message) and misfit(event, self._fields, self._named):
            raise OverflowError("a number is too large for a float")
        return message

    def _does_not_fit(self, event: Any, error: Exception) -> MillraceError:
        """Return the error of an event that fastavro refused with `error`."""
        if isinstance(error, MillraceError):  # a signal handler's
            return error
        try:
            reason = misfit(event, self._fields, self._named) or _reason_of(error)
        except RecursionError:
            reason = "it is nested too deeply"
        except MillraceError as wrong:
            reason = str(wrong)
        except Exception:  # values may be of any type, whose methods raise any error
            reason = _reason_of(error)
        return MillraceError(f"the event does not fit schema {self.name}: {' '.join(reason.split())}")


class ValueSchema(_Schema):
    """Encodes events of a schema without a header: their audit header is a record header."""

    def __init__(self, schema: Mapping[str, Any], schema_id: int) -> None:
        super().__init__(schema, schema_id, 0)

    def encode(self, event: Mapping[str, Any]) -> bytes:
        """Return the value of an event.

        Raise MillraceError, with the field's name, when the event does not fit the schema.
        """
        out = BytesIO()
        try:
            if not self._fits(event):
                fastavro.validate(event, self._schema, raise_errors=True)
            out.write(self._prefix)
            fastavro.schemaless_writer(out, self._schema, event, strict_allow_default=True)
            return self._checked(out.getvalue(), event)
        except Exception as error:  # fastavro raises a dozen types of errors
            raise self._does_not_fit(event, error) from error


class EventSchema(_Schema):
    """Encodes events of one schema, whose first field is the header, under its registry id."""

    def __init__(self, schema: Mapping[str, Any], schema_id: int) -> None:
        if not has_header(schema):
            raise MillraceError(
                f"schema {schema.get('name', '?')} cannot be audited: its first field must be `header`, an"
                f" AuditHeader {{{', '.join(_HEADER_FIELDS)}}} as in schemas/PageView.avsc"
            )
        super().__init__(schema, schema_id, 1)
        # An instance's headers differ in two numbers only. Building them from the other bytes halves the
        # cost of an event. It requires a header of just these fields, whose type no other field uses.
        self._body: Any = None
        if self._is_flat and len(schema["fields"][0]["type"]["fields"]) == len(_HEADER_FIELDS):
            self._body = fastavro.parse_schema({**schema, "fields": schema["fields"][1:]})
        self._instance: tuple[Any, Any, Any] | None = None
        self._instance_bytes = b""

    def encode(self, header: Mapping[str, Any], event: Mapping[str, Any]) -> bytes:
        """Return the message of an event.

        Raise MillraceError, with the field's name, when the event does not fit the schema.
        """
        out = BytesIO()
        try:
            fits = self._fits(event)
            if fits and self._body is not None:
                out.write(self._prefix_and_header(header))
                fastavro.schemaless_writer(out, self._body, event, strict_allow_default=True)
            else:
                record = {**event, HEADER_FIELD: header}
                if not fits:
                    fastavro.validate(record, self._schema, raise_errors=True)
                out.write(self._prefix)
                fastavro.schemaless_writer(out, self._schema, record, strict_allow_default=True)
            return self._checked(out.getvalue(), event)
        except Exception as error:  # fastavro raises a dozen types of errors
            raise self._does_not_fit(event, error) from error

    def _prefix_and_header(self, header: Mapping[str, Any]) -> bytearray:
        who = (header["server"], header["service"], header["instance"])
        if who != self._instance:
            self._instance, self._instance_bytes = who, instance_bytes(*who)
        out = bytearray(self._prefix)
        write_varint(out, header["time"])
        out += self._instance_bytes
        write_varint(out, header["sequence"])
        return out


def _reason_of(error: Exception) -> str:
    """Return the reasons in an error of fastavro, without the Python types of the values."""
    reasons = "; ".join(map(str, getattr(error, "errors", (error,))))
    return re.sub(r" of type <class '[^']*'>", ",", reasons)[:300] or type(error).__name__


def _is_plain(kind: Any) -> bool:
    """Return True for a primitive type or a union of them.

    A union's branches are checked when it is written.
    """
    branches = kind if isinstance(kind, list) else [kind]
    return all(isinstance(branch, str) and branch in _PLAIN for branch in branches)
