"""The attack's requests: whole ones of random values, and what can be made of them.

kio writes them, so every API that Kafka has is asked at every version that kio knows, offered or not. Private
APIs get the bytes of Millrace's own client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import random
import struct
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kio.index import KioIndexError, load_request_schema
from kio.serial import entity_writer

from millrace.records import Message, build_batch
from millrace.records.compression import Codec
from millrace.records.messages import seal
from millrace.records.mirror_position import Origin
from millrace.wire import mirror_append
from millrace.wire.codec import encode
from millrace.wire.messages import ApiKey
from millrace.wire.replica import (
    Acked,
    ReplicaAckRequest,
    ReplicaFetchRequest,
    ReplicaPartition,
    Wanted,
    encode_ack,
    encode_fetch,
)
from millrace.wire.unclean_election import ElectUncleanRequest
from millrace_broker.storage.staging import MAX_FILLER_RATIO
from millrace_mirror.translation import TranslateOffsetsRequest

TOPIC = "attacked"
FORGED = "forged"
"""The topic of forged batches; no other request names it."""
_NAMES = [
    TOPIC,
    TOPIC,
    TOPIC,
    "",
    "nobody",
    "group",
    "x" * 300,
    "\N{SNOWMAN}",
    *[f"made-{n}" for n in range(5)],
]
_INTEGERS = [0, 0, 0, 1, 1, 2, -1, -2, 100]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LONG_LISTS = (1_000, 3_000, 10_000)
"""Lists that are served, refused item by item, and not read to their end."""
HIGHEST_VERSION = 17
ALIKE = {(int(ApiKey.FETCH), 18): 17}
"""Requests that are served and kio does not know, and the version whose bytes they have."""


class Sent(NamedTuple):
    """One request of the attack, its length in front."""

    api_key: int
    version: int
    kind: str
    data: bytes
    log_bytes: int | None = None
    """By how much it may make the log of FORGED grow; None when nobody looks."""
    items: int = 0
    """Number of items in a long list, each of which is answered."""


def versions() -> list[tuple[int, int]]:
    """Every API and version that is asked: Kafka's as far as kio knows them, and the private ones."""
    known = []
    for api_key in range(100):
        for version in range(HIGHEST_VERSION + 1):
            with contextlib.suppress(KioIndexError):
                load_request_schema(api_key, version)
                known.append((api_key, version))
    return [*known, *ALIKE, *((api_key, 0) for api_key in ApiKey if api_key >= ApiKey.MIRROR_APPEND)]


def requests_for(
    api_key: int, version: int, rng: random.Random, *, long_lists: bool = False
) -> Iterator[Sent]:
    """One request of each kind."""

    def sent(kind: str, body: bytes, items: int = 0) -> Sent:
        return Sent(api_key, version, kind, frame(api_key, version, body), items=items)

    whole = body_of(api_key, version, rng)
    yield sent("whole", whole)
    yield sent("cut", whole[: rng.randrange(len(whole) + 1)])
    yield sent("flipped", _flipped(whole, rng))
    yield sent("noise", rng.randbytes(rng.choice([1, 10, 100, 2000])))
    yield sent("lengths", rng.choice([b"\x7f\xff\xff\xff", b"\xff", b"\0\1", b"\0\0\x27\x0f"]) * 400)
    for length in LONG_LISTS if long_lists else ():
        yield sent(f"list of {length}", body_of(api_key, version, rng, length), length)


def forged_batches(rng: random.Random) -> Iterator[Sent]:
    """Produce requests whose batches state what cannot be."""
    for codec in Codec:
        for count in (2, 1000, 1 << 20, 8_380_000, 400_000_000, (1 << 31) - 1):
            good = build_batch([Message(0, None, b"x" * rng.randrange(60))])
            batch = seal(
                good[61:],
                base_offset=0,
                attributes=codec,
                last_offset_delta=count - 1,
                base_timestamp=0,
                max_timestamp=0,
                records_count=count,
            )
            body = struct.pack(">hhii", -1, -1, 1000, 1) + _string(FORGED)
            body += struct.pack(">iii", 1, 0, len(batch)) + batch
            kind = f"{count} records of codec {codec} in {len(batch)} bytes"
            log_bytes = len(batch) * (1 + (MAX_FILLER_RATIO if codec else 0))
            yield Sent(0, 7, kind, frame(0, 7, body), log_bytes)


def frame(api_key: int, version: int, body: bytes) -> bytes:
    """A whole request."""
    header = struct.pack(">hhi", api_key, version, 7) + _string("attack")
    if _is_flexible(api_key, version):
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def _is_flexible(api_key: int, version: int) -> bool:
    with contextlib.suppress(KioIndexError):
        return bool(_schema(api_key, version).__flexible__)
    return False


def _schema(api_key: int, version: int) -> Any:
    return load_request_schema(api_key, ALIKE.get((api_key, version), version))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _flipped(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(min(len(changed), rng.randrange(1, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def body_of(api_key: int, version: int, rng: random.Random, length: int = 0) -> bytes:
    """A request of random values; with `length` one of its lists is that long, if it has any."""
    if api_key == ApiKey.MIRROR_APPEND:
        asked = mirror_append.MirrorAppend(
            mode=mirror_append.MirrorMode.APPEND,
            origin=Origin("dc1", TOPIC, uuid.UUID(int=1), 0),
            records=build_batch([Message(0, None, b"x")]) * (length // 10),
        )
        return b"".join(mirror_append.encode_request(TOPIC, asked))
    if api_key == ApiKey.TRANSLATE_OFFSETS:
        translate = TranslateOffsetsRequest(to_origin=True, topic=TOPIC, partition=0, offsets=(0,) * length)
        return encode(translate, api_key, 0)
    if api_key == ApiKey.ELECT_UNCLEAN:
        elect = ElectUncleanRequest(topic=TOPIC, partition=0, replica=1, reason="x" * length)
        return encode(elect, api_key, 0)
    place = ReplicaPartition(uuid.UUID(int=1), 0)
    if api_key == ApiKey.REPLICA_FETCH:
        wanted = [Wanted(place, 0, 0, -1, -1)] * length
        return encode_fetch(ReplicaFetchRequest(1, "0" * 16, True, 0, 1 << 20, wanted, ()))
    if api_key == ApiKey.REPLICA_ACK:
        return encode_ack(ReplicaAckRequest(1, "0" * 16, [Acked(place, 0, 1 << 40)] * length))
    schema = _schema(api_key, version)
    out = io.BytesIO()
    entity_writer(schema)(out, _entity(schema, rng, [length]))
    return out.getvalue()


def _entity(schema: Any, rng: random.Random, long: list[int]) -> Any:
    return schema(**{field.name: _value(field, rng, long) for field in dataclasses.fields(schema)})


def _value(field: Any, rng: random.Random, long: list[int]) -> Any:
    """`long` holds the length that the next list is to have; it is used up by it."""
    parts = [field.type, *typing.get_args(field.type)]
    many = next((part for part in parts if typing.get_origin(part) is tuple), None)
    kind = str(field.metadata.get("kafka_type"))
    if many is not None:
        if type(None) in parts and not long[0] and rng.random() < 0.2:
            return None
        (inner, _) = typing.get_args(many)
        length, long[0] = long[0] or rng.choice([0, 1, 1, 2]), 0
        if dataclasses.is_dataclass(inner):
            return tuple(_entity(inner, rng, long) for _ in range(length))
        return tuple(_scalar(kind, rng) for _ in range(length))
    message = next((part for part in parts if dataclasses.is_dataclass(part)), None)
    if message is not None:
        return _entity(message, rng, long)
    if field.default is not dataclasses.MISSING and rng.random() < 0.5:
        return field.default
    return _scalar(kind, rng)


def _scalar(kind: str, rng: random.Random) -> Any:
    make: dict[str, Callable[[], Any]] = {
        "string": lambda: rng.choice([*_NAMES, f"{rng.randrange(1 << 30):x}"]),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 50])),
        "records": lambda: build_batch([Message(0, None, b"x" * rng.randrange(100))]),
        "bool": lambda: rng.random() < 0.5,
        "uuid": lambda: uuid.UUID(int=rng.getrandbits(128)),
        "float64": rng.random,
        "uint16": lambda: rng.randrange(1 << 16),
    }
    if kind in make:
        return make[kind]()
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=rng.choice([0, 1, 100]))
    if kind.startswith("datetime"):
        return datetime.datetime.fromtimestamp(rng.randrange(1 << 31), datetime.UTC)
    bits = _BITS.get(kind, 16)
    return rng.choice([*_INTEGERS, (1 << (bits - 1)) - 1, -(1 << (bits - 1))])
