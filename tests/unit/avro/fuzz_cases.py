"""The schemas that are fuzzed, each with whole values: every type, and pairs that differ."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from tests.bench.page_views import PAGE_VIEW, Visitors


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A writer's schema, a table's, and a maker of whole values."""

    name: str
    writer: Any
    table: Any
    value: Callable[[random.Random], Any]


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A record schema."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


INNER = record("Inner", {"n": "long", "s": ["string", "null"]})
COLUMNS: dict[str, Any] = {
    "time": {"type": "long", "logicalType": "timestamp-millis"},
    "text": "string",
    "maybe": ["null", "long"],
    "day": {"type": "int", "logicalType": "date"},
    "micros": {"type": "long", "logicalType": "time-micros"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "big": {"type": "fixed", "name": "Big", "size": 16, "logicalType": "decimal", "precision": 38},
    "id": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"},
    "flag": "boolean",
    "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
    "inner": INNER,
    "perhaps": ["null", "Inner"],
    "either": ["null", "string", "long", "boolean"],
    "number": "int",
    "ratio": "double",
    "small": "float",
    "raw": "bytes",
    "nothing": "null",
    "nanos": {"type": "long", "logicalType": "timestamp-nanos"},
    "span": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
}
BLOCKS: dict[str, Any] = {
    "text": "string",
    "tags": {"type": "array", "items": "string"},
    "counts": {"type": "map", "values": ["null", "long"]},
    "parts": {"type": "array", "items": INNER},
    "flags": {"type": "array", "items": "boolean"},
    "kinds": {"type": "map", "values": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
    "either": ["null", "string", "long", "boolean"],
    "time": {"type": "long", "logicalType": "timestamp-micros"},
    "number": "int",
}
TREE = record("Tree", {"n": "int", "kids": {"type": "array", "items": "Tree"}, "next": ["null", "Tree"]})


def value(dice: random.Random) -> dict[str, Any]:
    """A value for COLUMNS and BLOCKS."""
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
        "small": float(dice.randrange(1 << 20)),
        "raw": dice.randbytes(dice.randrange(20)),
        "nothing": None,
        "nanos": dice.randrange(1 << 62),
        "span": dice.randbytes(12),
        "tags": ["tag" * dice.randrange(4) for _ in range(dice.randrange(4))],
        "counts": {f"k{index}": dice.choice((None, index)) for index in range(dice.randrange(4))},
        "parts": [inner] * dice.randrange(3),
        "flags": [dice.random() < 0.5 for _ in range(dice.randrange(5))],
        "kinds": {"k": dice.choice("ABC")},
    }


def tree(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """A value for TREE."""
    kids = [tree(dice, depth + 1) for _ in range(dice.randrange(3) if depth < 3 else 0)]
    return {
        "n": dice.randrange(100),
        "kids": kids,
        "next": tree(dice, depth + 1) if dice.random() < 0.3 else None,
    }


def _page_view(dice: random.Random) -> dict[str, Any]:
    return Visitors(random.Random(1)).event(dice.randrange(1 << 20), dice)


_EVERY, _BLOCKS, _FLAT = (
    record("R", COLUMNS),
    record("R", BLOCKS),
    record("Flat", {"a": "long", "b": "string"}),
)
_OLD = record(
    "R",
    {
        "a": ["null", "int", "string"],
        "b": {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        "c": "int",
        "d": "long",
        "e": "string",
        "gone": ["null", "bytes"],
        "f": ["null", INNER],
        "g": ["int", "string"],
    },
)
_NEW = record(
    "R",
    {
        "g": ["string", "double"],
        "a": ["null", "long"],
        "c": "float",
        "d": "double",
        "e": "bytes",
        "b": {"type": "enum", "name": "E", "symbols": ["C", "A"]},
        "f": ["null", INNER],
    },
)


def _old(dice: random.Random) -> dict[str, Any]:
    each = value(dice)
    return {
        "a": dice.choice((None, each["number"])),
        "b": dice.choice("AC"),
        "c": each["number"],
        "d": dice.getrandbits(63),
        "e": each["text"],
        "gone": dice.choice((None, b"raw")),
        "f": each["perhaps"],
        "g": dice.choice((7, "seven")),
    }


SCHEMAS = [
    Case(name="PageView", writer=PAGE_VIEW, table=PAGE_VIEW, value=_page_view),
    Case(name="every type", writer=_EVERY, table=_EVERY, value=value),
    Case(
        name="two columns",
        writer=_FLAT,
        table=_FLAT,
        value=lambda dice: {"a": dice.getrandbits(40), "b": "x" * 9},
    ),
    Case(name="another table", writer=_OLD, table=_NEW, value=_old),
    Case(name="arrays and maps", writer=_BLOCKS, table=_BLOCKS, value=value),
    Case(name="trees", writer=TREE, table=record("Tree", {"n": "int", "next": ["null", "Tree"]}), value=tree),
]
