"""Damaged messages: no crash, no wrong value, and the good rows beside them stay.

Every accepted row must be what fastavro reads from the same bytes. MILLRACE_FUZZ sets how many mutated
messages are tried (20,000 in all by default).
"""

from __future__ import annotations

import io
import os
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from millrace_spark.avro_decoder import body_decoder
from millrace_spark.avro_schema import Record, parse
from tests.unit.spark_decode.avro_cases import comparable, encode, in_one_buffer, rows_of, shown

MUTANTS = int(os.environ.get("MILLRACE_FUZZ", "20000"))
ROWS = 100

INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": ["string", "null"]}],
}
COLUMNS: dict[str, Any] = {
    "time": {"type": "long", "logicalType": "timestamp-millis"},
    "text": "string",
    "maybe": ["null", "long"],
    "day": {"type": "int", "logicalType": "date"},
    "micros": {"type": "long", "logicalType": "time-micros"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "big": {
        "type": "fixed",
        "name": "Big",
        "size": 16,
        "logicalType": "decimal",
        "precision": 38,
        "scale": 0,
    },
    "id": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"},
    "flag": "boolean",
    "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
    "inner": INNER,
    "perhaps": ["null", "Inner"],
    "either": ["null", "string", "long", "boolean"],
    "number": "int",
    "ratio": "double",
    "raw": "bytes",
}
BLOCKS: dict[str, Any] = {
    "text": "string",
    "tags": {"type": "array", "items": "string"},
    "counts": {"type": "map", "values": ["null", "long"]},
    "parts": {"type": "array", "items": INNER},
    "either": ["null", "string", "long", "boolean"],
    "time": {"type": "long", "logicalType": "timestamp-micros"},
    "number": "int",
}


def value(dice: random.Random) -> dict[str, Any]:
    inner = {
        "n": dice.getrandbits(dice.choice((6, 20, 60))),
        "s": dice.choice((None, "x" * dice.randrange(90))),
    }
    return {
        "time": datetime.fromtimestamp(dice.randrange(1 << 32), UTC),
        "text": dice.choice(("", "plain", "grün ∀", "x" * dice.randrange(200))),
        "maybe": dice.choice((None, dice.getrandbits(63), -dice.getrandbits(63))),
        "day": date(2015, 5, dice.randint(1, 31)),
        "micros": time(dice.randrange(24), dice.randrange(60)),
        "price": Decimal(dice.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
        "big": Decimal(dice.choice((0, -1, dice.getrandbits(100), -dice.getrandbits(60)))),
        "id": dice.randbytes(16),
        "flag": dice.random() < 0.5,
        "kind": dice.choice("ABC"),
        "inner": inner,
        "perhaps": dice.choice((None, inner)),
        "either": dice.choice((None, "text", dice.getrandbits(40), True)),
        "number": dice.randrange(-(1 << 31), 1 << 31),
        "ratio": dice.uniform(-1e9, 1e9),
        "raw": dice.randbytes(dice.randrange(20)),
        "tags": ["tag" * dice.randrange(4) for _ in range(dice.randrange(4))],
        "counts": {f"k{index}": dice.choice((None, index)) for index in range(dice.randrange(4))},
        "parts": [inner] * dice.randrange(3),
    }


_NASTY = [
    b"\xff" * 10, b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 9 + b"\x02",
    b"\x01", b"\x00", b"\x80\x00", b"\xc0\x80", b"\xed\xa0\x80", b"\xfe\xff\xff\xff\x0f",
]  # fmt: skip


def mutated(body: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(body)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at = dice.randrange(len(damaged) + 1)
        how = dice.randrange(6)
        if how == 0:
            del damaged[at:]
        elif how == 1:
            damaged += dice.randbytes(dice.randint(1, 12))
        elif how == 2:
            damaged[at:at] = dice.choice(_NASTY)
        elif how == 3:
            nasty = dice.choice(_NASTY)
            damaged[at : at + len(nasty)] = nasty
        elif how == 4:
            del damaged[at : at + dice.randint(1, 4)]
        elif at < len(damaged):
            damaged[at] = dice.randrange(256)
    return bytes(damaged)


def read_strictly(parsed: Any, body: bytes) -> Any:
    stream = io.BytesIO(body)
    read = fastavro.schemaless_reader(stream, parsed, None)
    assert stream.tell() == len(body), "fastavro left bytes that were accepted"
    return read


@pytest.mark.parametrize("fields", [COLUMNS, BLOCKS], ids=["by columns", "by rows"])
def test_an_accepted_row_of_a_damaged_message_is_what_fastavro_reads(fields: dict[str, Any]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    parsed, node, dice = fastavro.parse_schema(schema), parse(schema), random.Random(MUTANTS)
    assert isinstance(node, Record)
    decoder = body_decoder(node, node)
    tried = accepted = 0
    while tried < MUTANTS // 2:
        intact = [encode(schema, value(dice)) for _ in range(ROWS)]
        for _ in range(10):
            damaged = [index for index in range(ROWS) if dice.random() < dice.choice((0.02, 0.5, 1))]
            bodies = [mutated(body, dice) if index in damaged else body for index, body in enumerate(intact)]
            tried += len(damaged)
            arrays, faults = decoder.decode(*in_one_buffer(bodies))
            assert set(faults.reasons) <= set(damaged), "an intact message was rejected"
            good = [index for index in range(ROWS) if not faults.bad[index]]
            expected = [shown(node, read_strictly(parsed, bodies[index])) for index in good]
            assert comparable(rows_of(arrays, schema)) == comparable(expected)
            accepted += sum(index in damaged for index in good)
    assert accepted > tried // 50, "the mutations are too coarse to be accepted at all"
