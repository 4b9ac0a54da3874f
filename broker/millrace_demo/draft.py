"""Drafts an Avro schema from a sample of JSON messages, and notes what it guessed.

integers, all between 2000 and 2100 in ms    timestamp-millis
other integers                               long: a sample proves no int
numbers                                      double
texts, all of ISO 8601                       timestamp-micros with `"millrace.json": "iso"`, or date
values of several kinds, or always null      string that takes the JSON of any value
absent or null once                          nullable
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

NAMESPACE = "millrace.events"
PREFIX_BYTES = 5
"""Bytes of the registry before a value: a zero byte and a schema id."""
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH_MS = range(946_684_800_000, 4_102_444_800_000)
_LONG = range(-(1 << 63), 1 << 63)
_MAX_FIELDS = 200
"""Most fields of an object; one with more probably has values as names."""
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "object", list: "array"}
_ANY: Mapping[str, str] = {"type": "string", "millrace.json": "text"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted schema."""

    schema: Mapping[str, Any]
    notes: list[str]
    """Guesses, one line each."""
    objects: int
    others: int
    """Messages of the sample that are no JSON objects."""


@dataclass(slots=True)
class _Seen:
    """Values at one place of the messages."""

    count: int = 0
    nulls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, _Seen] = field(default_factory=dict)
    items: _Seen | None = None
    are_epochs: bool = True
    are_times: bool = True
    are_dates: bool = True

    def add(self, value: Any) -> None:
        self.count += 1
        if value is None:
            self.nulls += 1
            return
        kind = _KINDS[type(value)]
        if isinstance(value, dict):
            for name, inner in value.items():
                self.fields.setdefault(name, _Seen()).add(inner)
        elif isinstance(value, list):
            self.items = self.items or _Seen()
            for inner in value:
                self.items.add(inner)
        elif isinstance(value, str):
            self.are_times &= bool(_TIME.fullmatch(value)) and _is_in_the_calendar(value)
            self.are_dates &= bool(_DATE.fullmatch(value)) and _is_in_the_calendar(value)
        elif kind == "integer":
            self.are_epochs &= value in _EPOCH_MS
            kind = kind if value in _LONG else "integer of over 64 bits"
        self.kinds[kind] += 1


def _is_in_the_calendar(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def record_name(topic: str) -> str:
    """Return the record's name for a topic: the topic itself where it is an Avro name."""
    if _AVRO_NAME.fullmatch(topic):
        return topic
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[.-]", topic))
    return name if _AVRO_NAME.fullmatch(name) else f"T{name}"


def draft(topic: str, values: Iterable[bytes]) -> Draft:
    """Draft a schema from the values of messages."""
    root, others = _Seen(), 0
    for value in values:
        body = value[PREFIX_BYTES:] if value[:1] == b"\0" else value
        try:
            decoded = json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict):
            root.add(decoded)
        else:
            others += 1
    writer = _Writer()
    schema = writer.record(root, record_name(topic), "")
    return Draft({**schema, "namespace": NAMESPACE}, writer.notes, root.count, others)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class _Writer:
    """Writes the schema of what was seen, and notes the guesses."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._names: set[str] = set()
        """Names of the records so far."""

    def record(self, seen: _Seen, name: str, path: str) -> dict[str, Any]:
        while name in self._names:
            name += "_"
        self._names.add(name)
        fields: list[dict[str, Any]] = []
        used: set[str] = set()
        for json_name, inner in seen.fields.items():
            if not _can_be_mapped(json_name):
                self.notes.append(f"{path}{json_name!r}: left out, because no column can have this name")
                continue
            at = f"{path}{json_name}"
            member: dict[str, Any] = {"name": _field_name(json_name, used, is_top=not path)}
            used.add(member["name"].casefold())
            if member["name"] != json_name:
                member["millrace.name"] = json_name
                self.notes.append(f"{at}: the column is named {member['name']}")
            type_ = self._type(inner, f"{name}_{member['name']}", at)
            if inner.nulls or inner.count < seen.kinds["object"] or not inner.kinds:
                member |= {"type": ["null", type_], "default": None}
            else:
                member["type"] = type_
            fields.append(member)
        return {"type": "record", "name": name, "fields": fields}

    def _type(self, seen: _Seen, name: str, path: str) -> Any:
        kinds = set(seen.kinds)
        if kinds == {"integer"} and seen.are_epochs:
            self.notes.append(f"{path}: taken as times in ms")
            return {"type": "long", "logicalType": "timestamp-millis"}
        if kinds == {"integer"}:
            return "long"
        if kinds and kinds <= {"integer", "number"}:
            return "double"
        if kinds == {"text"} and seen.are_times:
            self.notes.append(f"{path}: taken as times of ISO 8601")
            return {"type": "long", "logicalType": "timestamp-micros", "millrace.json": "iso"}
        if kinds == {"text"}:
            return {"type": "int", "logicalType": "date"} if seen.are_dates else "string"
        if kinds == {"boolean"}:
            return "boolean"
        names = [json_name for json_name in seen.fields if _can_be_mapped(json_name)]
        if kinds == {"object"} and 0 < len(names) <= _MAX_FIELDS:
            return self.record(seen, name, f"{path}.")
        if kinds == {"array"} and seen.items is not None and seen.items.kinds:
            items = self._type(seen.items, f"{name}_item", f"{path}[...]")
            return {"type": "array", "items": ["null", items] if seen.items.nulls else items}
        if kinds == {"array"}:
            self.notes.append(f"{path}: always empty: its items are taken as JSON text")
            return {"type": "array", "items": ["null", _ANY]}
        found = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.kinds.items()))
        what = f"objects of {len(names)} names" if kinds == {"object"} else found or "always null"
        self.notes.append(f"{path}: {what}: taken as JSON text")
        return dict(_ANY)


def _can_be_mapped(json_name: str) -> bool:
    """Return True if a column can stand for a field of this name."""
    return bool(json_name) and not re.search(r'["\\\x00-\x1f]', json_name)


def _field_name(json_name: str, used: set[str], *, is_top: bool) -> str:
    """Return an Avro name for a field, which differs from the used names in more than case."""
    name = json_name
    if not _AVRO_NAME.fullmatch(name):
        name = re.sub(r"[^A-Za-z0-9_]", "_", name)
        name = name if _AVRO_NAME.fullmatch(name) else f"field_{name}"
    if is_top and name.startswith("_"):  # Millrace's columns and Iceberg's begin with an underscore
        name = f"field{name}"
    while name.casefold() in used:
        name += "_"
    return name
