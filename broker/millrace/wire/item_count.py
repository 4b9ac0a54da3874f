"""How many items all lists of a request hold, counted in its bytes before anything is made of them.

A request of a megabyte may hold half a million items, each of them an object and an answer of its own; the
count costs as little as its limit. Knows the fields of kio's classes, and does not look at values.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

from millrace.errors import InvalidRequest
from millrace.records.compression import Buffer

_FIXED = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16, "timedelta_i32": 4,
    "timedelta_i64": 8,
}  # fmt: skip
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_Step: TypeAlias = Callable[["_Count", Buffer, int], int]
"""From where a field begins to where it ends."""


class RequestTooLarge(InvalidRequest):
    """More than a broker takes of one request. Not every response has a place to say so."""


class _Count:
    """The items so far."""

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit

    def add(self, items: int) -> None:
        self._left -= items
        if self._left < 0:
            raise RequestTooLarge(f"a request of more than {self._limit} items in its lists")


def item_counter(entity: type, limit: int) -> Callable[[Buffer], None]:
    """A function that raises RequestTooLarge for a request that has more items than `limit`.

    Bytes that do not fit the schema are none of its business: it stops there.
    """
    skip = _message(entity)

    def check(body: Buffer) -> None:
        try:
            skip(_Count(limit), body, 0)
        except (struct.error, IndexError):
            return  # who decodes them says what is wrong

    return check


def _message(entity: Any) -> _Step:
    fields = [field for field in dataclasses.fields(entity) if field.metadata.get("tag") is None]
    steps = [_field(field, entity.__flexible__) for field in fields]
    if entity.__flexible__:
        steps.append(_skip_tags)

    def skip(count: _Count, body: Buffer, position: int) -> int:
        for step in steps:
            position = step(count, body, position)
        return position

    return skip


def _field(field: dataclasses.Field[Any], flexible: bool) -> _Step:
    parts = (field.type, *typing.get_args(field.type))
    kind = str(field.metadata.get("kafka_type"))
    many = next((part for part in parts if typing.get_origin(part) is tuple), None)
    if dataclasses.is_dataclass(field.type):
        return _message(field.type)
    if many is None:
        return _scalar(kind, flexible)
    (inner, _) = typing.get_args(many)
    if dataclasses.is_dataclass(inner):
        return _list(_message(inner), flexible)
    return _fixed_list(_FIXED[kind], flexible) if kind in _FIXED else _list(_scalar(kind, flexible), flexible)


def _scalar(kind: str, flexible: bool) -> _Step:
    if kind in _FIXED:
        size = _FIXED[kind]
        return lambda _, __, position: position + size
    length = _length(_INT16 if kind == "string" else _INT32, flexible)

    def skip(_: _Count, body: Buffer, position: int) -> int:
        size, position = length(body, position)
        return position + max(size, 0)

    return skip


def _list(step: _Step, flexible: bool) -> _Step:
    length = _length(_INT32, flexible)

    def skip(count: _Count, body: Buffer, position: int) -> int:
        items, position = length(body, position)
        count.add(max(items, 0))
        for _ in range(items):
            position = step(count, body, position)
        return position

    return skip


def _fixed_list(size: int, flexible: bool) -> _Step:
    length = _length(_INT32, flexible)

    def skip(count: _Count, body: Buffer, position: int) -> int:
        items, position = length(body, position)
        count.add(max(items, 0))
        return position + max(items, 0) * size

    return skip


def _length(classic: struct.Struct, flexible: bool) -> Callable[[Buffer, int], tuple[int, int]]:
    if flexible:
        return _compact_length
    return lambda body, position: (classic.unpack_from(body, position)[0], position + classic.size)


def _compact_length(body: Buffer, position: int) -> tuple[int, int]:
    number, position = _varint(body, position)
    return number - 1, position


def _varint(body: Buffer, position: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := body[position]) & 0x80:
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return number | byte << shift, position + 1


def _skip_tags(_: _Count, body: Buffer, position: int) -> int:
    tags, position = _varint(body, position)
    for _tag in range(tags):
        _number, position = _varint(body, position)
        size, position = _varint(body, position)
        position += size
    return position
