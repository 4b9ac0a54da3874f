"""Whether a field's default fits its type, as the Avro specification says defaults are written in JSON.

Apache's Python library leaves this open, yet a default that does not fit fails the first reader that needs
it, long after the schema was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DefaultChecker:
    """Whether JSON values are defaults for schemas that use these definitions; values must stay alive.

    Each value is looked at once for each named type: unions of records that hold each other would else be
    tried in every combination, twice as many for each level that the default is nested deeper.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._seen: dict[tuple[int, str], bool] = {}

    def fits(self, value: Any, schema: Any) -> bool:
        """True when the JSON value is a default for the schema; for a union one of its types must take it."""
        match schema:
            case list():
                return any(self.fits(value, branch) for branch in schema)
            case str():
                return self._fits_named(value, schema)
            case {"type": "array", "items": items}:
                return isinstance(value, list) and all(self.fits(item, items) for item in value)
            case {"type": "map", "values": values}:
                return isinstance(value, dict) and all(self.fits(item, values) for item in value.values())
            case {"type": "enum", "symbols": symbols}:
                return value in symbols
            case {"type": "fixed", "size": size}:
                return _is_bytes(value) and len(value) == size
            case {"type": "record" | "error", "fields": fields}:
                return isinstance(value, dict) and all(
                    self.fits(value[field["name"]], field["type"])
                    if field["name"] in value
                    else "default" in field
                    for field in fields
                )
        return _fits_primitive(value, schema["type"])

    def _fits_named(self, value: Any, name: str) -> bool:
        if name not in self._definitions:
            return _fits_primitive(value, name)
        key = id(value), name
        if key not in self._seen:
            self._seen[key] = self.fits(value, self._definitions[name])
        return self._seen[key]


def _fits_primitive(value: Any, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bound = 1 << (31 if kind == "int" else 63)
            return type(value) is int and -bound <= value < bound
        case "float" | "double":
            return type(value) in (int, float)
        case "bytes":
            return _is_bytes(value)
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    """Bytes are written as a string whose code points 0 to 255 are the byte values."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)
