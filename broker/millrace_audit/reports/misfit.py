"""The reason why an event does not fit its schema, in words of JSON: the field, what the schema allows, and
what came.

`fastavro` decides whether an event fits. This module only explains a refusal. It knows neither registry nor
topics.
"""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from fastavro.write import LOGICAL_WRITERS

from millrace.errors import MillraceError

_LONGEST = 100  # characters of a name, a value or a list of symbols in an error
_BITS = {"int": 32, "long": 64}
_WORDS = {
    "null": "null",
    "boolean": "true or false",
    "int": "an integer of 32 bits",
    "long": "an integer of 64 bits",
    "float": "a number of at most 3.4e38",
    "double": "a number",
    "string": "a string",
    "bytes": "bytes (no text)",
    "array": "an array",
    "map": "an object",
}
_TYPES: Mapping[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "string": str,
    "bytes": bytes | bytearray | memoryview | array.array,
    "array": Sequence | array.array,
}
"""Python types of a kind's values; those of other kinds are mappings."""
_JSON = (str, int, float, list, dict, type(None))


def misfit(
    event: Any, fields: Sequence[Mapping[str, Any]], named: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return the first reason why an event lacks a field, has an unknown field or a wrong value.

    Return None if nothing wrong is found. `fields` are those of a parsed schema; `named` has its named types.
    Raise MillraceError, with the field, for a value that its logical type cannot convert.
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
    if isinstance(value, str) and not _is_text(value):
        yield path, "has half of a surrogate pair: give a text that UTF-8 can encode"
    elif kind == "union":
        if isinstance(value, tuple):
            return  # a Python producer may name the branch: fastavro explains what is wrong with it
        branches = [next(_in_value(value, branch, named, path), None) for branch in schema]
        if None in branches:
            return
        # A wrong value inside says more than the list of the branches.
        inside = [found for found in branches if found is not None and found[0] != path]
        yield inside[0] if len(inside) == 1 else (path, _wrong(value, schema, named))
    elif not _has_kind(_converted(value, kind, schema, path), kind, schema):
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


def _converted(value: Any, kind: str, schema: Mapping[str, Any], path: str) -> Any:
    """Return what fastavro makes of a value for its logical type, for example of a date."""
    convert = LOGICAL_WRITERS.get(f"{kind}-{schema.get('logicalType')}")
    try:
        return convert(value, dict(schema)) if convert else value
    except Exception as error:  # fastavro and Python raise many types of errors
        about = f"{_short(path)} does not fit the logical type {schema['logicalType']}"
        raise MillraceError(f"{about}: {_short(str(error))}") from error


def _has_kind(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind in _BITS:
        bound = 1 << (_BITS[kind] - 1)
        return isinstance(value, Integral) and -bound <= int(value) < bound
    if kind in ("float", "double"):
        return isinstance(value, Real) and _is_finite(value, kind)
    if kind == "enum":
        return value in schema["symbols"]
    if kind == "fixed":
        return isinstance(value, bytes | bytearray) and len(value) == schema["size"]
    if kind == "array" and isinstance(value, str):
        return False
    return isinstance(value, _TYPES.get(kind, Mapping))


def _is_finite(value: Real, kind: str) -> bool:
    """Return False for a finite number that becomes infinite as a float or double."""
    try:
        return bool(struct.pack("<f" if kind == "float" else "<d", float(value)))
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
        return f"{schema['size']} bytes (no text)"
    return _WORDS.get(kind, f"an object of the type {schema.get('name', kind)}")


def _shown(value: Any) -> str:
    """Return a value as JSON, or with its type if JSON has no such values."""
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    if not isinstance(value, _JSON):
        return _short(f"a {kind} {value}")
    try:
        return _short(json.dumps(value, default=str, skipkeys=True))
    except ValueError:  # it contains itself, or an integer of thousands of digits
        return f"a value of the type {kind} that cannot be shown"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
