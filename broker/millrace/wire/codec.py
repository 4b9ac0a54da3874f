"""Messages from bytes and into bytes, as their fields say in `wire.fields`.

A reader and a writer are made once for each message, API and version. A list's length is counted before its
items are made, so that a request of few bytes costs little. What cannot be read raises InvalidRequest.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records.compression import Buffer
from millrace.wire import admin_messages as admin
from millrace.wire import group_messages as group
from millrace.wire import messages
from millrace.wire.fields import FIXED_SIZE, Field, fields_of
from millrace.wire.messages import ApiKey

M = TypeVar("M")
MAX_DECODED_BYTES = 1 << 20
"""Most bytes of a request that is decoded here, which Produce is not. Honest requests are smaller."""
MAX_DECODED_ITEMS = 2_000
"""Most items in all lists of a request. Each takes up to 8 us of the event loop, its answer included: 1,000
topics of one partition each fit, and cost less than 20 ms."""
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_UNPACK_INT16, _UNPACK_INT32 = _INT16.unpack_from, _INT32.unpack_from
_MAX_VARINT_BITS = 35
_NO_UUID = bytes(16)


class RequestTooLarge(InvalidRequest):
    """More than a broker takes of one request. Not every response has a place to say so."""


class _Api(NamedTuple):
    response: type
    flexible: int
    """The first version with tagged fields and short lengths."""


_NEVER = 0x7FFF
_APIS: dict[int, _Api] = {
    ApiKey.PRODUCE: _Api(messages.EmptyProduceResponse, 9),
    ApiKey.FETCH: _Api(messages.EmptyFetchResponse, 12),
    ApiKey.LIST_OFFSETS: _Api(messages.ListOffsetsResponse, 6),
    ApiKey.METADATA: _Api(messages.MetadataResponse, 9),
    ApiKey.OFFSET_COMMIT: _Api(group.OffsetCommitResponse, 8),
    ApiKey.OFFSET_FETCH: _Api(messages.OffsetFetchResponse, 6),
    ApiKey.FIND_COORDINATOR: _Api(messages.FindCoordinatorResponse, 3),
    ApiKey.JOIN_GROUP: _Api(group.JoinGroupResponse, 6),
    ApiKey.HEARTBEAT: _Api(group.HeartbeatResponse, 4),
    ApiKey.LEAVE_GROUP: _Api(group.LeaveGroupResponse, 4),
    ApiKey.SYNC_GROUP: _Api(group.SyncGroupResponse, 4),
    ApiKey.DESCRIBE_GROUPS: _Api(group.DescribeGroupsResponse, 5),
    ApiKey.LIST_GROUPS: _Api(group.ListGroupsResponse, 3),
    ApiKey.API_VERSIONS: _Api(messages.ApiVersionsResponse, 3),
    ApiKey.CREATE_TOPICS: _Api(messages.CreateTopicsResponse, 5),
    ApiKey.DELETE_TOPICS: _Api(messages.DeleteTopicsResponse, 4),
    ApiKey.INIT_PRODUCER_ID: _Api(messages.InitProducerIdResponse, 2),
    ApiKey.DESCRIBE_CONFIGS: _Api(admin.DescribeConfigsResponse, 4),
    ApiKey.ALTER_CONFIGS: _Api(admin.AlterConfigsResponse, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _Api(admin.DescribeLogDirsResponse, 2),
    ApiKey.CREATE_PARTITIONS: _Api(admin.CreatePartitionsResponse, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Api(admin.AlterConfigsResponse, 1),
    ApiKey.DELETE_GROUPS: _Api(group.DeleteGroupsResponse, 2),
    ApiKey.OFFSET_DELETE: _Api(group.OffsetDeleteResponse, _NEVER),
}


def decode(message: type[M], api_key: int, version: int, body: Buffer) -> M:
    """The message in `body` (header already taken off); InvalidRequest when it does not fit the schema."""
    items = sys.maxsize
    if message.__name__.endswith("Request"):
        if len(body) > MAX_DECODED_BYTES:
            raise RequestTooLarge(f"{_name(api_key)} with {len(body)} bytes; {MAX_DECODED_BYTES} are allowed")
        items = MAX_DECODED_ITEMS
    # Bytes are cut faster than a view is, and the copy is small: Produce is not decoded here.
    source = _Source(bytes(body), items, flexible=is_flexible(api_key, version))
    try:
        return cast(M, _message(cast(Hashable, message), api_key, version).read(source))
    except (ValueError, IndexError, struct.error) as error:
        raise InvalidRequest(f"malformed {_name(api_key)} v{version}: {error}") from error


def encode(message: object, api_key: int, version: int) -> bytes:
    """The body of `message` at `version`, without a header."""
    return _message(cast(Hashable, type(message)), api_key, version).write(message)


def encode_error(api_key: int, version: int, code: ErrorCode) -> bytes:
    """A response that says only `code`: for a request that cannot be served.

    Its lists are empty and `code` stands in the response's own error field, where it has one. For an API
    that is not Kafka's, the code alone.
    """
    if api_key not in _APIS:
        return _INT16.pack(code)
    response = _APIS[api_key].response
    values = {name: _empty(field) for name, field in fields_of(response).items() if field.required}
    if "error_code" in fields_of(response):
        values["error_code"] = code
    return encode(response(**values), api_key, version)


def is_flexible(api_key: int, version: int) -> bool:
    """True if messages of this API and version carry tagged fields; False for an API that nobody serves."""
    return api_key in _APIS and version >= _APIS[api_key].flexible


def _empty(field: Field) -> Any:
    return () if field.kind == "array" else 0


def _name(api_key: int) -> str:
    return ApiKey(api_key).name.lower() if api_key in _APIS else f"API {api_key}"


class _Source:
    """The bytes of a message that is being read, and how many items its lists may still have."""

    __slots__ = ("encoded", "flexible", "items", "position")

    def __init__(self, encoded: bytes, items: int, *, flexible: bool) -> None:
        self.encoded = encoded
        self.items = items
        self.flexible = flexible
        self.position = 0

    def take(self, size: int) -> bytes:
        start = self.position
        end = start + size
        if end > len(self.encoded):
            raise ValueError(f"{size} bytes are stated, {len(self.encoded) - start} are there")
        self.position = end
        return self.encoded[start:end]

    def varint(self) -> int:
        start = self.position
        number = self.encoded[start]
        if number < 0x80:
            self.position = start + 1
            return number
        number = 0
        for shift in range(0, _MAX_VARINT_BITS, 7):
            byte = self.encoded[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError(f"a number of more than {_MAX_VARINT_BITS} bits")

    def size(self) -> int:
        """The length of bytes or the number of a list's items; negative for a null."""
        if self.flexible:
            return self.varint() - 1
        start = self.position
        self.position = start + 4
        return cast(int, _UNPACK_INT32(self.encoded, start)[0])

    def count(self, items: int) -> None:
        """Refuse more items than are allowed, or than can be there."""
        self.items -= items
        if self.items < 0:
            raise RequestTooLarge(f"a request of more than {MAX_DECODED_ITEMS} items in its lists")
        if items > len(self.encoded) - self.position:
            raise ValueError(f"{items} items are stated, {len(self.encoded) - self.position} bytes are there")

    def string(self) -> str | None:
        if self.flexible:
            size = self.varint() - 1
        else:
            (size,) = _UNPACK_INT16(self.encoded, self.position)
            self.position += 2
        return self.take(size).decode() if size >= 0 else None

    def text(self) -> str:
        text = self.string()
        if text is None:
            raise ValueError("a null in a list of texts")
        return text

    def data(self) -> bytes | None:
        size = self.size()
        return self.take(size) if size >= 0 else None

    def uuid(self) -> UUID | None:
        value = self.take(16)
        return None if value == _NO_UUID else UUID(bytes=value)

    def skip_tagged_fields(self) -> None:
        tags = self.varint()
        if not tags:
            return
        self.count(tags)
        for _ in range(tags):
            self.varint()
            self.take(self.varint())


class _Target:
    """Values into bytes, as `_Source` reads them."""

    def __init__(self, *, flexible: bool) -> None:
        self._flexible = flexible

    def length(self, classic: struct.Struct, length: int) -> bytes:
        return _varint(length + 1) if self._flexible else classic.pack(length)

    def uuid(self, value: UUID | None) -> bytes:
        return _NO_UUID if value is None else value.bytes

    def string(self, value: str | None) -> bytes:
        if value is None:
            return self.length(_INT16, -1)
        encoded = value.encode()
        return self.length(_INT16, len(encoded)) + encoded

    def data(self, value: bytes | None) -> bytes:
        return self.length(_INT32, -1) if value is None else self.length(_INT32, len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Type(NamedTuple):
    """How a value, or some fields of a message, are read and written at one version."""

    read: Callable[[_Source], Any]
    write: Callable[[Any], bytes]


@cache
def _message(cls: Any, api_key: int, version: int) -> _Type:
    flexible = is_flexible(api_key, version)
    parts: list[_Type] = []
    position = 0
    for layout, run in groupby(fields_of(cls).items(), lambda named: _layout(named[1], api_key, version)):
        fields = dict(run)
        if layout == "absent":
            parts.append(_absent(fields))
        elif layout == "numbers":
            parts.append(_numbers(fields, position))
        else:
            parts += [
                _one(name, _type(field, api_key, version), position + index, version >= field.null_since)
                for index, (name, field) in enumerate(fields.items())
            ]
        position += len(fields)
    reads, writes = [part.read for part in parts], [part.write for part in parts]

    def read(source: _Source) -> Any:
        values: list[Any] = []
        for read_fields in reads:
            values += read_fields(source)
        if flexible:
            source.skip_tagged_fields()
        return tuple.__new__(cls, values)

    def write(message: Any) -> bytes:
        encoded = b"".join([write_fields(message) for write_fields in writes])
        return encoded + b"\0" if flexible else encoded  # no tagged fields

    return _Type(read, write)


def _layout(field: Field, api_key: int, version: int) -> str:
    if not field.is_in(api_key, version):
        return "absent"
    return "numbers" if field.kind in FIXED_SIZE else "one by one"


def _absent(fields: dict[str, Field]) -> _Type:
    defaults = [field.default for field in fields.values()]
    return _Type(lambda source: defaults, lambda message: b"")


def _numbers(fields: dict[str, Field], position: int) -> _Type:
    """Fields of a fixed size that follow each other are read and written as one."""
    layout = struct.Struct(">" + "".join(field.kind for field in fields.values()))
    unpack, pack, size, end = layout.unpack_from, layout.pack, layout.size, position + len(fields)

    def read(source: _Source) -> tuple[Any, ...]:
        start = source.position
        source.position = start + size
        return unpack(source.encoded, start)

    return _Type(read, lambda message: pack(*message[position:end]))


def _one(name: str, value: _Type, position: int, nullable: bool) -> _Type:
    read_value, write_value = value

    def read(source: _Source) -> tuple[Any]:
        value = read_value(source)
        if value is None and not nullable:
            raise ValueError(f"{name} is null")
        return (value,)

    def write(message: Any) -> bytes:
        value = message[position]
        if value is None and not nullable:
            raise ValueError(f"{name} is null")
        return write_value(value)

    return _Type(read, write)


def _type(field: Field, api_key: int, version: int) -> _Type:
    """How a field is read and written whose size is not fixed."""
    target = _Target(flexible=is_flexible(api_key, version))
    item = field.item
    if item is None:
        return _Type(getattr(_Source, field.kind), getattr(target, field.kind))
    if not isinstance(item, Field):
        return _array(_message(item, api_key, version), target)
    if item.kind in FIXED_SIZE:
        return _array_of_numbers(item.kind, target)
    return _array(_Type(_Source.text, target.string), target)


def _array(item: _Type, target: _Target) -> _Type:
    read_item, write_item = item

    def read(source: _Source) -> tuple[Any, ...] | None:
        count = source.size()
        if count <= 0:
            return () if count == 0 else None
        source.count(count)
        return tuple([read_item(source) for _ in range(count)])

    def write(values: tuple[Any, ...] | None) -> bytes:
        if values is None:
            return target.length(_INT32, -1)
        return target.length(_INT32, len(values)) + b"".join([write_item(value) for value in values])

    return _Type(read, write)


@lru_cache(maxsize=64)
def _row(code: str, count: int) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


def _array_of_numbers(code: str, target: _Target) -> _Type:
    def read(source: _Source) -> tuple[int, ...] | None:
        count = source.size()
        if count <= 0:
            return () if count == 0 else None
        source.count(count)
        layout, start = _row(code, count), source.position
        source.position = start + layout.size
        return layout.unpack_from(source.encoded, start)

    def write(values: tuple[int, ...] | None) -> bytes:
        if values is None:
            return target.length(_INT32, -1)
        return target.length(_INT32, len(values)) + _row(code, len(values)).pack(*values)

    return _Type(read, write)
