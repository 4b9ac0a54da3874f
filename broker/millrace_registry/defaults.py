"""Whether a field's default fits its type, as the Avro specification says defaults are written in JSON.

Apache's Python library leaves this open, yet a default that does not fit fails the first reader that needs
it, long after the schema was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INT_BITS = {"int": 31, "long": 63}


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
        if isinstance(schema, list):
            return any(self.fits(value, branch) for branch in schema)
        if isinstance(schema, str):
            return self._fits_named(value, schema)
        kind = schema["type"]
        if kind == "array":
            return isinstance(value, list) and all(self.fits(v, schema["items"]) for v in value)
        if kind == "map":
            return isinstance(value, dict) and all(self.fits(v, schema["values"]) for v in value.values())
        if kind == "enum":
            return value in schema["symbols"]
        if kind == "fixed":
            return _is_bytes(value) and len(value) == schema["size"]
        if kind in ("record", "error"):
            return isinstance(value, dict) and all(
                self.fits(value[field["name"]], field["type"])
                if field["name"] in value
                else "default" in field
                for field in schema["fields"]
            )
        return _fits_primitive(value, kind)

    def _fits_named(self, value: Any, name: str) -> bool:
        if name not in self._definitions:
            return _fits_primitive(value, name)
        key = id(value), name
        if key not in self._seen:
            self._seen[key] = self.fits(value, self._definitions[name])
        return self._seen[key]


def _fits_primitive(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _INT_BITS:
        bound = 1 << _INT_BITS[kind]
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "bytes":
        return _is_bytes(value)
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    """Bytes are written as a string whose code points 0 to 255 are the byte values."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)
