"""Every message at every version that is served has the bytes that Kafka's schemas, as kio has them, give.

But Produce and Fetch, which are laid out by hand: see test_produce_and_fetch_bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from millrace import wire
from millrace.errors import InvalidRequest
from millrace.wire.codec import decode, encode, is_flexible
from millrace.wire.fields import Field, fields_of, request_of, response_of
from millrace.wire.messages import ApiKey
from millrace_broker import handlers
from tests.support import ROUNDS
from tests.unit.protocol_page import LISTED

BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}
MESSAGES = [
    value
    for package in (wire, handlers)
    for file in iter_modules(package.__path__, f"{package.__name__}.")
    for value in vars(import_module(file.name)).values()
    if hasattr(value, "declared") and value.__module__ == file.name
]
"""Every class of messages that a file of these folders declares."""
EXAMPLES = 5 * ROUNDS if ROUNDS > 2 else 4
"""Number of examples of each message at each version. Other versions share most of its fields."""
_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
_MILLISECOND = datetime.timedelta(milliseconds=1)


class Case(typing.NamedTuple):
    """One message at one version."""

    cls: Any
    entity: Any
    api_key: ApiKey
    version: int


def cases() -> Iterator[Case]:
    for cls in MESSAGES:
        for keys, load in (request_of(cls), load_request_schema), (response_of(cls), load_response_schema):
            for api_key in map(ApiKey, keys):
                for version in LISTED.get(api_key, ()):
                    yield Case(cls, load(api_key, version), api_key, version)


CASES = list(cases())
every_message = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.cls.__name__}-v{case.version}"
)


@cache  # to make one takes longer than to draw from it
def drawn(case: Case) -> st.SearchStrategy[Any]:
    """Messages whose fields are of any value where the version has them, and else of their default."""
    return _message(case.cls, case.entity, case.api_key, case.version)


def fields_at(cls: Any, api_key: int, version: int) -> dict[str, Field]:
    return {name: field for name, field in fields_of(cls).items() if field.is_in(api_key, version)}


def _message(cls: Any, entity: Any, api_key: int, version: int) -> st.SearchStrategy[Any]:
    theirs = {field.name: field for field in dataclasses.fields(entity)}
    ours = fields_at(cls, api_key, version)
    values = {name: _value(ours[name], theirs[name], api_key, version) for name in ours}
    return st.fixed_dictionaries(values).map(lambda drawn_values: cls(**drawn_values))


def _value(kind: Field, field: Any, api_key: int, version: int) -> st.SearchStrategy[Any]:
    if kind.kind == "message":
        values = _message(kind.item, _one_nested(field.type), api_key, version)
    elif kind.kind == "array":
        values = st.lists(_item(kind.item, field, api_key, version), max_size=3).map(tuple)
    else:
        values = _scalar(kind.kind, str(field.metadata["kafka_type"]))
    return st.none() | values if version >= kind.null_since else values


def _item(item: Any, field: Any, api_key: int, version: int) -> st.SearchStrategy[Any]:
    if isinstance(item, Field):
        return _scalar(item.kind, str(field.metadata["kafka_type"]))
    return _message(item, _nested(field.type), api_key, version)


def _scalar(code: str, kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type == "error_code":
        return st.sampled_from([int(code) for code in KioErrorCode])
    if kafka_type == "timedelta_i64":  # a timedelta holds no more, exactly
        return st.integers(-(1 << 50), 1 << 50)
    if code in _BITS:
        limit = 1 << (_BITS[code] - 1)
        return st.integers(-limit, limit - 1)
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    ids = st.uuids().filter(lambda value: value != UUID(int=0))
    return {
        "d": st.floats(allow_nan=False),
        "?": st.booleans(),
        "string": texts,
        "data": st.binary(max_size=20),
        "uuid": ids,
    }[code]


def _nested(hint: Any) -> Any:
    """The class X of `tuple[X, ...]`, which may be None."""
    many = next(part for part in (hint, *typing.get_args(hint)) if typing.get_origin(part) is tuple)
    return typing.get_args(many)[0]


def _one_nested(hint: Any) -> Any:
    """The class X of `X | None`."""
    return next(part for part in typing.get_args(hint) if part is not type(None))


def as_entity(message: Any, entity: Any) -> Any:
    """kio's message of the same values."""
    values = {}
    for field in dataclasses.fields(entity):
        if "tag" not in field.metadata:
            value, kafka_type = getattr(message, field.name), str(field.metadata.get("kafka_type"))
            one = next((part for part in typing.get_args(field.type) if dataclasses.is_dataclass(part)), None)
            if one is not None and typing.get_origin(field.type) is not tuple:
                value = value and as_entity(value, one)
            elif isinstance(value, tuple) and kafka_type == "None":
                value = tuple(as_entity(item, _nested(field.type)) for item in value)
            elif kafka_type == "error_code":
                value = KioErrorCode(value)
            elif kafka_type.startswith("timedelta"):
                value = value * _MILLISECOND
            values[field.name] = value
    return entity(**values)


def written_by_kio(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def test_every_message_of_every_api_is_here() -> None:
    asked = {case.api_key for case in CASES if case.api_key in request_of(case.cls)}
    assert asked == LISTED.keys() - BY_HAND - {ApiKey.API_VERSIONS}  # whose request nobody reads
    assert {
        case.api_key for case in CASES if case.api_key in response_of(case.cls)
    } == LISTED.keys() - BY_HAND


@every_message
def test_a_message_is_flexible_from_the_version_on_that_kafka_says(case: Case) -> None:
    assert is_flexible(case.api_key, case.version) == case.entity.__flexible__


@every_message
def test_a_message_has_the_fields_that_kafkas_schema_gives_its_version(case: Case) -> None:
    def compare(cls: Any, entity: Any) -> None:
        theirs = {field.name: field for field in dataclasses.fields(entity) if "tag" not in field.metadata}
        ours = fields_at(cls, case.api_key, case.version)
        assert list(ours) == list(theirs)
        for name, kind in ours.items():
            optional = type(None) in typing.get_args(theirs[name].type)
            assert (case.version >= kind.null_since) == optional, name
            if isinstance(kind.item, type):
                nested = _one_nested if kind.kind == "message" else _nested
                compare(kind.item, nested(theirs[name].type))

    compare(case.cls, case.entity)


@every_message
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_we_and_kio_write_the_same_bytes_and_read_each_other(case: Case, data: st.DataObject) -> None:
    message = data.draw(drawn(case))
    body = encode(message, case.api_key, case.version)
    entity = as_entity(message, case.entity)
    assert body == written_by_kio(entity)
    assert entity_reader(case.entity)(body, 0) == (entity, len(body))
    assert decode(case.cls, case.api_key, case.version, memoryview(body)) == message


@every_message
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_cut_and_changed_bytes_are_a_message_or_an_invalid_request(case: Case, data: st.DataObject) -> None:
    body = bytearray(encode(data.draw(drawn(case)), case.api_key, case.version))
    for cut in data.draw(st.sets(st.integers(0, len(body) - 1), max_size=20)) if body else ():
        with pytest.raises(InvalidRequest):
            decode(case.cls, case.api_key, case.version, body[:cut])
    for position in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=5)):
        body[position : position + 1] = data.draw(st.binary(min_size=1, max_size=2))
        read_or_refused(case, bytes(body))


@every_message
@settings(max_examples=EXAMPLES)
@given(noise=st.binary(max_size=200))
def test_noise_is_a_message_or_an_invalid_request(case: Case, noise: bytes) -> None:
    read_or_refused(case, noise)


def read_or_refused(case: Case, body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(decode(case.cls, case.api_key, case.version, body), case.cls)
