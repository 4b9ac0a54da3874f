"""Decoding and encoding of messages, by the fields that `wire.fields` declares.

A reader and a writer are made once for each message, API and version. A list's length is counted before its
items are made, so that a request of few bytes costs little. Malformed messages raise InvalidRequest.
"""

from __future__ import annotations

import linecache
import struct
import sys
from collections.abc import Callable, Hashable, Iterable
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records.compression import Buffer
from millrace.wire.fields import FIXED_SIZE, Field, fields_of
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import (
    INT8,
    INT32,
    MIN_ITEM_LIMIT,
    REFUSED_ITEMS,
    Reader,
    RequestTooLarge,
    TooManyItems,
    Writer,
)
from millrace.wire.refusal import EMPTY, refuse_each

M = TypeVar("M")
MAX_ITEM_BYTES = 5 << 10
"""Bytes of a request for each item that it may have: the longest metadata of an offset, and names."""
_FLEXIBLE_SINCE = {int(key): key.flexible_since for key in ApiKey}


def decode(message: type[M], api_key: int, version: int, body: Buffer, *, items: int = sys.maxsize) -> M:
    """Return the message in `body` (header already taken off). Raise InvalidRequest when it does not fit the
    schema.

    Raise RequestTooLarge when its lists have more than `items` items.
    """
    # Bytes are cut faster than a view is, and the copy is small: Produce is not decoded here.
    reader = Reader(bytes(body), items=items, flexible=is_flexible(api_key, version))
    return _read(message, api_key, version, reader)


def decode_request(
    message: type[M], api_key: int, version: int, body: Buffer, item_limit: int = MIN_ITEM_LIMIT
) -> M:
    """Return the request in `body`, as `decode` reads it.

    Raise TooManyItems, which holds the request, when its lists have more than `item_limit` items. Raise
    RequestTooLarge when they have REFUSED_ITEMS more than that, or the request has more than MAX_ITEM_BYTES
    for each item.
    """
    if len(body) > (allowed := item_limit * MAX_ITEM_BYTES):
        raise RequestTooLarge(f"a request of {len(body)} bytes; {allowed} are allowed")
    most = item_limit + REFUSED_ITEMS
    reader = Reader(bytes(body), items=most, flexible=is_flexible(api_key, version))
    request = _read(message, api_key, version, reader)
    if (items := most - reader.items) > item_limit:
        raise TooManyItems(request, items, item_limit)
    return request


def _read(message: type[M], api_key: int, version: int, reader: Reader[bytes]) -> M:
    try:
        return cast(M, _message(cast(Hashable, message), api_key, version).read(reader))
    except (ValueError, IndexError, struct.error) as error:
        raise InvalidRequest(f"malformed {_name(api_key)} v{version}: {error}") from error


def encode(message: object, api_key: int, version: int) -> bytes:
    """Return the body of `message` at `version`, without a header.

    `message` may also be an item of a message's list.
    """
    return _message(cast(Hashable, type(message)), api_key, version).write(message)


def encode_error(
    response: type, api_key: int, version: int, code: ErrorCode, reason: str = "", asked: object = None
) -> bytes | None:
    """Return a response with only `code` and, if the response has a field for it, `reason`.

    With the request `asked`, a response that lists the request's items has the code in each. Otherwise the
    lists are empty, and the code is in the response's own error field. Return None if there is no such field:
    the response would mean success.
    """
    refused = None if asked is None else refuse_each(response, asked, api_key, version, code, reason)
    if refused is not None:
        return encode(refused, api_key, version)
    fields = fields_of(response)
    if "error_code" not in fields or not fields["error_code"].is_in(api_key, version):
        return None
    values: dict[str, Any] = {
        name: EMPTY.get(field.kind, 0) for name, field in fields.items() if field.required
    }
    values["error_code"] = code
    for name in {"error_message", "message"} & fields.keys() if reason else ():
        values[name] = reason
    return encode(response(**values), api_key, version)


def is_flexible(api_key: int, version: int) -> bool:
    """Return True if messages of this API and version carry tagged fields; False for an unknown API."""
    return version >= _FLEXIBLE_SINCE.get(api_key, version + 1)


def _name(api_key: int) -> str:
    return ApiKey(api_key).name.lower() if api_key in _FLEXIBLE_SINCE else f"API {api_key}"


class _Type(NamedTuple):
    """The reader and the writer of a value, or of some fields of a message, at one version."""

    read: Callable[..., Any]
    write: Callable[[Any], bytes]


@cache
def _message(cls: Any, api_key: int, version: int) -> _Type:
    """Compile the reader and the writer of a message from its fields.

    Fields of a fixed size that follow each other are read and written at once. A loop over functions of the
    fields takes a quarter longer. For an i32 and a string that may not be null this source is made:

        def read(reader):
          start = reader.position
          reader.position = start + 4
          (_number, ) = unpack_number(reader.encoded, start)
          _name = read_name(reader)
          if _name is None: raise ValueError('name is null')
          return new(cls, (_number, _name, ))
        def write(message):
          (_number, _name, ) = message
          if _name is None: raise ValueError('name is null')
          return b''.join([pack_number(_number, ), write_name(_name)])
    """
    scope: dict[str, Any] = {"new": tuple.__new__, "cls": cls}
    reads, checks, writes = list[str](), list[str](), list[str]()
    fields = fields_of(cls)
    for layout, run in groupby(fields, lambda name: _layout(fields[name], api_key, version)):
        names = list(run)
        if layout == "absent":
            scope |= {f"_{name}": fields[name].default for name in names}
        elif layout == "numbers":
            numbers = struct.Struct(">" + "".join(fields[name].kind for name in names))
            values, first = _values(names), names[0]
            scope[f"unpack_{first}"], scope[f"pack_{first}"] = numbers.unpack_from, numbers.pack
            reads += ["start = reader.position", f"reader.position = start + {numbers.size}"]
            reads.append(f"{values} = unpack_{first}(reader.encoded, start)")
            writes.append(f"pack_{first}{values}")
        else:
            for name in names:
                scope[f"read_{name}"], scope[f"write_{name}"] = _type(fields[name], api_key, version)
                check = f"if _{name} is None: raise ValueError('{name} is null')"
                checked = [check] if version < fields[name].null_since else []
                reads += [f"_{name} = read_{name}(reader)", *checked]
                checks += checked
                writes.append(f"write_{name}(_{name})")
    if is_flexible(api_key, version):
        reads.append("reader.skip_tagged_fields()")
        writes.append(r"b'\0'")  # no tagged fields
    values, encoded = _values(fields), f"b''.join([{', '.join(writes)}])"
    source = "\n  ".join(["def read(reader):", *reads, f"return new(cls, {values})"]) + "\n"
    source += "\n  ".join(["def write(message):", f"{values} = message", *checks, f"return {encoded}"])
    file = f"<{cls.__qualname__} of {_name(api_key)} v{version}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(source, file, "exec"), scope)
    return _Type(scope["read"], scope["write"])


def _layout(field: Field, api_key: int, version: int) -> str:
    if not field.is_in(api_key, version):
        return "absent"
    return "numbers" if field.kind in FIXED_SIZE else "one by one"


def _values(names: Iterable[str]) -> str:
    return f"({''.join(f'_{name}, ' for name in names)})"


def _type(field: Field, api_key: int, version: int) -> _Type:
    """Return the reader and the writer of a field without a fixed size."""
    writer = Writer(flexible=is_flexible(api_key, version))
    item = field.item
    if item is None:
        return _Type(getattr(Reader, field.kind), getattr(writer, field.kind))
    if field.kind == "message":
        return _optional(_message(item, api_key, version))
    if not isinstance(item, Field):
        return _array(_items(_message(item, api_key, version)), writer)
    if item.kind in FIXED_SIZE:
        return _array(_row(item.kind), writer)
    return _array(_items(_Type(Reader.text, writer.string)), writer)


def _items(item: _Type) -> _Type:
    """Return the reader and the writer of a list's items, after their count.

    An item may be bytes that were encoded before.
    """
    read_item, write_item = item
    return _Type(
        lambda reader, count: tuple([read_item(reader) for _ in range(count)]),
        lambda values: b"".join([v if isinstance(v, bytes) else write_item(v) for v in values]),
    )


def _row(code: str) -> _Type:
    @lru_cache(maxsize=64)
    def layout(count: int) -> struct.Struct:
        return struct.Struct(f">{count}{code}")

    return _Type(
        lambda reader, count: reader.unpack(layout(count)), lambda values: layout(len(values)).pack(*values)
    )


def _optional(value: _Type) -> _Type:
    read_value, write_value = value
    return _Type(
        lambda reader: read_value(reader) if reader.number(INT8) >= 0 else None,
        lambda message: INT8.pack(-1) if message is None else INT8.pack(1) + write_value(message),
    )


def _array(items: _Type, writer: Writer) -> _Type:
    def read(reader: Reader[bytes]) -> Any:
        count = reader.length()
        if count <= 0:
            return () if count == 0 else None
        return items.read(reader, reader.count(count))

    def write(values: tuple[Any, ...] | None) -> bytes:
        if values is None:
            return writer.length(INT32, -1)
        return writer.length(INT32, len(values)) + items.write(values)

    return _Type(read, write)
