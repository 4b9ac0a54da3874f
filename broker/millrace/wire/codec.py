"""Requests and responses between bytes and the values of `wire.messages`. The only importer of kio.

kio holds Kafka's schemas, one class per message and version; this module pairs each with our own message by
field name. Bytes in, values out; what cannot be decoded raises InvalidRequest.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeAlias, TypeVar

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records.compression import Buffer
from millrace.wire.item_count import RequestTooLarge, item_counter

M = TypeVar("M")
AnyMessage: TypeAlias = Hashable  # a message class: functools.cache asks no more of it
Convert = Callable[[Any], Any]
_MILLISECOND = datetime.timedelta(milliseconds=1)
MAX_DECODED_BYTES = 1 << 20
"""Of a request that is decoded here, which Produce with its records is not. Honest ones are far smaller."""
MAX_DECODED_ITEMS = 2_000
"""In all lists of a request. One takes up to 8 us of the only thread, its answer included: 1,000 topics of
one partition each fit, and cost less than 20 ms."""


def decode(message: type[M], api_key: int, version: int, body: Buffer) -> M:
    """The message in `body` (header already taken off); InvalidRequest when it does not fit the schema."""
    cached = typing.cast(AnyMessage, message)
    read, convert, check = _decoder(cached, api_key, version)
    if check is not None:
        if len(body) > MAX_DECODED_BYTES:
            raise RequestTooLarge(f"{_name(api_key)} with {len(body)} bytes; {MAX_DECODED_BYTES} are allowed")
        check(body)
    try:
        # kio reads from immutable bytes only; the copy is small, because Produce is not decoded here.
        entity, _ = read(bytes(body), 0)
    except (SerialError, ValueError, OverflowError, KeyError) as error:  # KeyError: a tag it does not know
        raise InvalidRequest(f"malformed {_name(api_key)} v{version}: {error}") from error
    return typing.cast(M, convert(entity))


def encode(message: object, api_key: int, version: int) -> bytes:
    """The body of `message` at `version`, without a header."""
    cached = typing.cast(AnyMessage, type(message))
    write, convert = _encoder(cached, api_key, version)
    out = io.BytesIO()
    write(out, convert(message))
    return out.getvalue()


def encode_error(api_key: int, version: int, code: ErrorCode) -> bytes:
    """A response that says only `code`: for a request that cannot be served at this version.

    Its lists are empty and `code` stands in the response's own error field, where it has one. For an API
    that nobody knows, the code alone.
    """
    try:
        entity = load_response_schema(api_key, version)
    except KioIndexError:
        return int(code).to_bytes(2, "big", signed=True)
    fields = {f.name: _zero(f) for f in dataclasses.fields(entity)}
    if "error_code" in fields:
        fields["error_code"] = KioErrorCode(code)
    out = io.BytesIO()
    entity_writer(entity)(out, entity(**fields))
    return out.getvalue()


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """True if messages of this API and version carry tagged fields; False for one nobody knows."""
    try:
        return load_request_schema(api_key, version).__flexible__
    except KioIndexError:
        return False


def _name(api_key: int) -> str:
    return api_key_map.get(api_key, f"API {api_key}")


def _schema(message: Any, api_key: int, version: int) -> Any:
    """kio's class for one of our messages; their names end alike."""
    load = load_request_schema if _is_request(message) else load_response_schema
    return load(api_key, version)


def _is_request(message: Any) -> bool:
    return bool(message.__name__.endswith("Request"))


@cache
def _decoder(
    message: AnyMessage, api_key: int, version: int
) -> tuple[Callable[..., Any], Convert, Callable[[Buffer], None] | None]:
    """Reader, converter and, of requests only, the check of how many items there are."""
    entity = _schema(message, api_key, version)
    check = item_counter(entity, MAX_DECODED_ITEMS) if _is_request(message) else None
    return entity_reader(entity), _from_entity(typing.cast(type, message), entity), check


@cache
def _encoder(message: AnyMessage, api_key: int, version: int) -> tuple[Callable[..., Any], Convert]:
    entity = _schema(message, api_key, version)
    return entity_writer(entity), _to_entity(typing.cast(type, message), entity)


def _nested(hint: Any) -> type | None:
    """The dataclass X of a field typed `tuple[X, ...]` or `tuple[X, ...] | None`; None for other fields."""
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is tuple and dataclasses.is_dataclass(typing.get_args(part)[0]):
            return typing.cast(type, typing.get_args(part)[0])
    return None


def _shared_fields(message: type, entity: type) -> list[tuple[str, type | None, dataclasses.Field[Any]]]:
    """(name, our nested message, kio's field) of every field that both have."""
    hints = typing.get_type_hints(message)
    theirs = {f.name: f for f in dataclasses.fields(entity)}
    ours = dataclasses.fields(message)
    return [(f.name, _nested(hints[f.name]), theirs[f.name]) for f in ours if f.name in theirs]


def _from_entity(message: type, entity: type) -> Convert:
    """A function from kio's entity to our message."""
    hints = typing.get_type_hints(message)
    conversions: list[tuple[str, bool, Convert | None]] = []
    for name, nested, field in _shared_fields(message, entity):
        convert: Convert | None = None
        if nested is not None:
            convert = _each(_from_entity(nested, _nested(field.type) or object))
        elif str(field.metadata.get("kafka_type")).startswith("timedelta"):
            convert = lambda value: value // _MILLISECOND  # noqa: E731
        conversions.append((name, type(None) in typing.get_args(hints[name]), convert))

    def run(value: Any) -> Any:
        fields = {}
        for name, may_be_none, convert in conversions:
            item = getattr(value, name)
            if item is None and not may_be_none:
                # kio takes a null for every list, whatever the schema says.
                raise InvalidRequest(f"a {message.__name__} without {name}")
            fields[name] = item if convert is None else convert(item)
        return message(**fields)

    return run


def _to_entity(message: type, entity: Any) -> Convert:
    """A function from our message to kio's entity; fields we do not have become zero or empty."""
    conversions: list[tuple[str, Convert | None]] = []
    shared = _shared_fields(message, entity)
    for name, nested, field in shared:
        convert: Convert | None = None
        kind = str(field.metadata.get("kafka_type"))
        if nested is not None:
            convert = _each(_to_entity(nested, _nested(field.type)))
        elif kind.startswith("timedelta"):
            convert = lambda value: value * _MILLISECOND  # noqa: E731
        elif kind == "error_code":
            convert = KioErrorCode
        conversions.append((name, convert))
    names = {name for name, _, _ in shared}
    rest = {f.name: _zero(f) for f in dataclasses.fields(entity) if f.name not in names}

    def run(value: Any) -> Any:
        fields = dict(rest)
        for name, convert in conversions:
            item = getattr(value, name)
            fields[name] = item if convert is None else convert(item)
        return entity(**fields)

    return run


def _each(convert: Convert) -> Convert:
    return lambda items: None if items is None else tuple([convert(item) for item in items])


def _zero(field: dataclasses.Field[Any]) -> Any:
    """What stands in a field that we have nothing to say about."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if typing.get_origin(field.type) is tuple:
        return ()
    if type(None) in typing.get_args(field.type):
        return None
    if dataclasses.is_dataclass(field.type):
        nested = typing.cast(Any, field.type)
        return nested(**{f.name: _zero(f) for f in dataclasses.fields(nested)})
    kind = str(field.metadata["kafka_type"])
    if kind.startswith("timedelta"):
        return 0 * _MILLISECOND
    empty = {
        "error_code": KioErrorCode.none, "string": "", "bytes": b"", "records": b"", "bool": False,
        "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
    }  # fmt: skip
    return empty.get(kind, 0)
