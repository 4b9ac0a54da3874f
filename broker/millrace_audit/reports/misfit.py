"""The reason why an event does not fit its schema, in words of JSON: the field, what the schema allows, and
what came.

`fastavro` decides whether an event fits. This module only explains a refusal. It knows neither registry nor
topics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LONGEST = 100  # characters of a name, a value or a list of symbols in an error
_BITS = {"int": 32, "long": 64}
_WORDS = {
    "null": "null",
    "boolean": "true or false",
    "int": "an integer of 32 bits",
    "long": "an integer of 64 bits",
    "float": "a number",
    "double": "a number",
    "string": "a string",
    "bytes": "bytes, which JSON cannot hold",
    "array": "an array",
    "map": "an object",
}
_JSON = (str, int, float, list, dict, type(None))


def misfit(
    event: Any, fields: Sequence[Mapping[str, Any]], named: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return the first reason why an event lacks a field, has an unknown field or a wrong value.

    Return None if nothing wrong is found. `fields` are those of a parsed schema; `named` has its named types.
    """
    if not isinstance(event, Mapping):
        return f"it must be an object, not {_shown(event)}"
    found = next(_in_record(event, fields, named, ""), None)
    return found and f"{_short(found[0])} {found[1]}"


_Found = tuple[str, str]
"""A field's path, and what is wrong with the field."""


def _in_record(
    value: Mapping[str, Any], fields: Sequence[Mapping[str, Any]], named: Mapping[str, Any], path: str
) -> Iterator[_Found]:
    for field in fields:
        name = field["name"]
        if name in value:
            yield from _in_value(value[name], field["type"], named, f"{path}{name}")
        # fastavro takes the default of a field of bytes for a text, and refuses it.
        elif "default" not in field or any(_in_value(field["default"], field["type"], named, name)):
            yield f"{path}{name}", f"is missing: give {_allowed(field['type'], named)}"
    known = {field["name"] for field in fields}
    for name in (name for name in value if name not in known):
        yield f"{path}{name}", "is no field of the schema: leave it out, or register a schema that has it"


def _in_value(value: Any, schema: Any, named: Mapping[str, Any], path: str) -> Iterator[_Found]:
    """Yield what is wrong with a value and with the values inside it."""
    kind, schema = _resolved(schema, named)
    if kind == "union":
        branches = [next(_in_value(value, branch, named, path), None) for branch in schema]
        if None in branches:
            return
        # A wrong value inside says more than the list of the branches.
        inside = [found for found in branches if found is not None and found[0] != path]
        yield inside[0] if len(inside) == 1 else (path, _wrong(value, schema, named))
    elif isinstance(value, str) and not _is_text(value):
        yield path, "has half of a surrogate pair: give a text that UTF-8 can encode"
    elif not _has_kind(value, kind, schema):
        yield path, _wrong(value, schema, named)
    elif kind == "array":
        for number, item in enumerate(value):
            yield from _in_value(item, schema["items"], named, f"{path}[{number}]")
    elif kind == "map":
        for name, item in value.items():
            if not _is_text(str(name)):
                yield path, "has a name with half of a surrogate pair: give a text that UTF-8 can encode"
            yield from _in_value(item, schema["values"], named, f"{path}.{name}")
    elif kind == "record":
        yield from _in_record(value, schema["fields"], named, f"{path}.")


def _resolved(schema: Any, named: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a schema's kind, and the definition of a named type."""
    if isinstance(schema, list):
        return "union", schema
    if isinstance(schema, str):
        return _resolved(named[schema], named) if schema in named else (schema, {"type": schema})
    kind = schema["type"]
    return (kind, schema) if isinstance(kind, str) and kind not in named else _resolved(kind, named)


def _has_kind(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    if isinstance(value, tuple) or ("logicalType" in schema and not isinstance(value, _JSON)):
        return True  # a Python producer may name a union's branch, or give a date
    if kind in _BITS:
        bound = 1 << (_BITS[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_double(value)
    if kind == "enum":
        return value in schema["symbols"]
    if kind == "fixed":
        return isinstance(value, bytes) and len(value) == schema["size"]
    types: Mapping[str, Any] = {"null": type(None), "boolean": bool, "string": str, "array": list}
    return isinstance(value, types.get(kind, bytes | bytearray if kind == "bytes" else Mapping))


def _is_double(value: float) -> bool:
    try:
        return isinstance(float(value), float)
    except OverflowError:
        return False


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(value: Any, schema: Any, named: Mapping[str, Any]) -> str:
    return f"must be {_allowed(schema, named)}, not {_shown(value)}"


def _allowed(schema: Any, named: Mapping[str, Any]) -> str:
    kind, schema = _resolved(schema, named)
    if kind == "union":
        return " or ".join(dict.fromkeys(_allowed(branch, named) for branch in schema))
    if kind == "enum":
        return f"one of {_short(', '.join(map(json.dumps, schema['symbols'])))}"
    if kind == "fixed":
        return f"{schema['size']} bytes, which JSON cannot hold"
    return _WORDS.get(kind, f"an object of the type {schema.get('name', kind)}")


def _shown(value: Any) -> str:
    """Return a value as JSON, if it has one."""
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    return _short(json.dumps(value, default=str, skipkeys=True))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
