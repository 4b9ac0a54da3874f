"""The fields that a change of a schema adds, removes or changes, in lines for people."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from millrace_registry.avro_schema import NAMED, RECORDS, AvroSchema, Json

MAX_PATHS = 10_000
"""Most paths of fields of one schema that are listed: types that use each other can have
billions of paths."""
MAX_CHARACTERS = 8 << 20
"""Most characters of paths and types of one schema: a long type may be reached by many paths."""

_Place = tuple[str, Json, tuple[str, ...]]
"""A path, the type at its end, and the names of the records on the path."""


def changed_fields(old: AvroSchema, new: AvroSchema) -> list[str]:
    """Return `+ path: type`, `- path: type` or `~ path: type was type` for each field that differs, by path.

    Nested fields are compared down to the level at which a schema exceeds MAX_PATHS or MAX_CHARACTERS; then a
    last line states that.
    """
    old_levels, new_levels = _levels(old), _levels(new)
    before, after, nothing = dict[str, str](), dict[str, str](), dict[str, str]()
    for old_level, new_level in itertools.zip_longest(old_levels, new_levels, fillvalue=nothing):
        if old_level is None or new_level is None:
            break
        before |= old_level
        after |= new_level
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in before:
            lines.append(f"+ {path}: {after[path]}")
        elif path not in after:
            lines.append(f"- {path}: {before[path]}")
        elif before[path] != after[path]:
            lines.append(f"~ {path}: {after[path]} was {before[path]}")
    if None in (*old_levels, *new_levels):
        return [*lines, "there are too many fields at deeper levels to be compared"]
    return lines or ["no field differs: names, documentation or attributes do"]


def _levels(schema: AvroSchema) -> list[dict[str, str] | None]:
    """Return each field's type and default as text, by path; one mapping for each level of nesting.

    The last level is None if there would be more than MAX_PATHS or MAX_CHARACTERS in all.
    """
    levels: list[dict[str, str] | None] = []
    places: list[_Place] = [("", schema.tree, ())]
    paths, characters = MAX_PATHS, MAX_CHARACTERS
    while places:
        found = []
        for place, words in _fields_at(schema, places):
            paths, characters = paths - 1, characters - len(place[0]) - len(words)
            if paths < 0 or characters < 0:
                return [*levels, None]
            found.append((place, words))
        levels.append({path: words for (path, _, _), words in found})
        places = [place for place, _ in found]
    return levels


def _fields_at(schema: AvroSchema, places: Sequence[_Place]) -> Iterator[tuple[_Place, str]]:
    for path, tree, inside in places:
        for record in _records(schema, tree):
            if record["name"] in inside:
                continue
            for field in record["fields"]:
                step = f"{path}.{field['name']}" if path else field["name"]
                default = f" = {json.dumps(field['default'])}" if "default" in field else ""
                place = (step, field["type"], (*inside, record["name"]))
                yield place, f"{_in_words(field['type'])}{default}"


def _records(schema: AvroSchema, tree: Json) -> Iterator[dict[str, Json]]:
    """Yield the type itself, if it is a record, or the records in its lists, maps and unions."""
    if isinstance(tree, str):
        tree = schema.definitions.get(tree, tree)
    if isinstance(tree, list):
        for branch in tree:
            yield from _records(schema, branch)
    elif isinstance(tree, dict) and tree["type"] in RECORDS:
        yield tree
    elif isinstance(tree, dict) and tree["type"] in ("array", "map"):
        yield from _records(schema, tree.get("items", tree.get("values")))


def _in_words(tree: Json) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return " | ".join(map(_in_words, tree))
    if tree["type"] in NAMED:
        symbols = f"({', '.join(tree['symbols'])})" if tree["type"] == "enum" else ""
        size = f"({tree['size']})" if tree["type"] == "fixed" else ""
        return f"{tree['name']}{symbols}{size}"
    if tree["type"] in ("array", "map"):
        return f"{tree['type']} of {_in_words(tree.get('items', tree.get('values')))}"
    logical = f" {tree['logicalType']}" if isinstance(tree.get("logicalType"), str) else ""
    return f"{tree['type']}{logical}"
