"""One real request of every API and version a broker serves, and how to spoil it.

The requests are filled in by the names and types of Kafka's own schemas, so that an API that is added later
is here at once. They ask for little: what is created or deleted has a name of its own.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import typing
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer

from millrace.wire.codec import decode, is_flexible
from millrace.wire.messages import ApiKey, ApiVersionsResponse
from tests.integration.faults.wire import Wire, batch

RECORDS = batch("whole", 3)
"""All that a spoiled request may ever add to a log: its CRC holds or it is refused."""
_NAMES: dict[str, Any] = {
    "acks": -1,
    "transactional_id": None,
    "num_partitions": 1,
    "replication_factor": 1,
    "fetch_offset": 0,
    "session_id": 0,
    "session_epoch": -1,
    "key_type": 0,
    "assignments": (),
    "resource_type": 2,
    "count": 2,
    "member_id": "",
    "protocol_type": "consumer",
    "group_instance_id": None,
    "generation_id": -1,
    "min_bytes": 0,
    "timestamp": -1,
    "partition_max_bytes": 1 << 20,
    "max_bytes": 1 << 20,
}
_DOOMED = frozenset({ApiKey.DELETE_TOPICS, 21, 42})
"""Delete something: they name what is not there."""


def real_requests(bootstrap: str, topic: str) -> list[bytes]:
    """The content of a frame for each API and version the broker serves."""
    with Wire(bootstrap) as wire:
        answer = decode(ApiVersionsResponse, ApiKey.API_VERSIONS, 0, wire.ask(ApiKey.API_VERSIONS, 0))
    served = [(api.api_key, version) for api in answer.api_keys for version in _versions(api)]
    return [_content(key, version, topic) for key, version in [*served, (ApiKey.METADATA, 12)]]


def _versions(api: Any) -> range:
    # Produce v0 to v2 are told of and refused.
    return range(3 if api.api_key == ApiKey.PRODUCE else api.min_version, api.max_version + 1)


def _content(api_key: int, version: int, topic: str) -> bytes:
    entity = load_request_schema(api_key, version)
    out = io.BytesIO()
    name = "not-there" if api_key in _DOOMED else "made" if api_key == ApiKey.CREATE_TOPICS else topic
    entity_writer(entity)(out, _filled(entity, name))
    head = struct.pack(">hhih", api_key, version, 1, 4) + b"test"
    return head + (b"\0" if is_flexible(api_key, version) else b"") + out.getvalue()


def _filled(entity: Any, topic: str) -> Any:
    return entity(**{field.name: _value(field, topic) for field in dataclasses.fields(entity)})


def _value(field: dataclasses.Field[Any], topic: str) -> Any:
    if field.name in _NAMES:
        return _NAMES[field.name]
    inner = _element(field.type)
    if inner is not None:
        return (_filled(inner, topic),)
    kind = str(field.metadata.get("kafka_type"))
    if typing.get_origin(field.type) is tuple:
        return (topic,) if kind == "string" else (0,) if kind.startswith("int") else ()
    if dataclasses.is_dataclass(field.type):
        return _filled(field.type, topic)
    by_kind = {
        "string": topic,
        "bytes": b"\0\0\0\0",
        "records": RECORDS,
        "bool": False,
        "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
    }
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=50)
    if kind in by_kind:
        return by_kind[kind]
    if kind == "uuid":
        return None
    return 0 if field.default is dataclasses.MISSING else field.default


def _element(hint: Any) -> Any:
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is tuple and dataclasses.is_dataclass(typing.get_args(part)[0]):
            return typing.get_args(part)[0]
    return None


_SIZES = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x0100_0000]
_SPOIL = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "size", "repeat", "number", "noise"]),
    st.integers(0, (1 << 16) - 1),
    st.integers(0, (1 << 16) - 1),
)


def spoiled(requests: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Real requests with one to three things wrong with each."""
    return st.builds(_spoil, st.sampled_from(requests), st.lists(_SPOIL, min_size=1, max_size=3))


def _spoil(content: bytes, how: Sequence[tuple[str, int, int]]) -> bytes:
    spoilt = bytearray(content)
    for kind, where, value in how:
        # Seldom in the header: a request for another API is only refused.
        low = 8 if value % 16 and len(spoilt) > 8 else 0
        at = low + where % max(1, len(spoilt) - low)
        if kind == "flip":
            spoilt[at] ^= 1 << value % 8
        elif kind == "cut":
            del spoilt[max(8, at) :]
        elif kind == "insert":
            spoilt[at:at] = value.to_bytes(2, "big") * (1 + value % 40)
        elif kind == "size":
            size = _SIZES[value % len(_SIZES)]
            spoilt[at : at + 4] = size.to_bytes(4, "big")
        elif kind == "repeat":
            spoilt[at:at] = spoilt[low:at]
        elif kind == "number":
            spoilt[at : at + 2] = value.to_bytes(2, "big")
        else:
            spoilt[at:] = bytes((value * n * n + where) & 0xFF for n in range(value % 300))
        spoilt += bytes(max(0, 8 - len(spoilt)))
    return bytes(spoilt[: 1 << 16])
