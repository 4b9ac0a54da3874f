"""Avro's primitive types read from bytes, one value at a time: strictly, and never past the end.

A reader takes the whole body and a position and gives the value and the position behind it. IndexError and
struct.error say that the body ends too early, ValueError what else is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from millrace_spark.avro.schema import Fixed, Leaf

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_INT_LIMIT = 1 << 31


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number of 1 to 10 bytes, 64 bits at most."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), position


def read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """A length and that many bytes."""
    size, position = read_long(data, position)
    end = position + size
    if not position <= end <= len(data):
        raise ValueError("a length is negative or reaches past the end of the message")
    return data[position:end], end


def read_string(data: bytes, position: int) -> tuple[str, int]:
    """A length and that many bytes of UTF-8."""
    value, position = read_bytes(data, position)
    return value.decode(), position


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    value, position = read_long(data, position)
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise ValueError(f"{value} is out of range for int")
    return value, position


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    if data[position] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return data[position] == 1, position + 1


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, position)[0], position + 4


def _read_double(data: bytes, position: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, position)[0], position + 8


_READERS: dict[str, Read] = {
    "null": lambda data, position: (None, position),
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def leaf_reader(leaf: Leaf | Fixed) -> Read:
    """The reader of a primitive type or of so many bytes, without its logical type."""
    if isinstance(leaf, Leaf):
        return _READERS[leaf.kind]
    size = leaf.size

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        if position + size > len(data):
            raise IndexError
        return data[position : position + size], position + size

    return read
