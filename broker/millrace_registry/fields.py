"""Which fields a change of a schema adds, removes or changes, in lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator

from millrace_registry.avro_schema import NAMED, RECORDS, AvroSchema, Json


def changed_fields(old: AvroSchema, new: AvroSchema) -> list[str]:
    """`+ path: type`, `- path: type` or `~ path: type was type` for each field that differs, by path."""
    before, after = dict(_fields(old, old.tree, "", ())), dict(_fields(new, new.tree, "", ()))
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in before:
            lines.append(f"+ {path}: {after[path]}")
        elif path not in after:
            lines.append(f"- {path}: {before[path]}")
        elif before[path] != after[path]:
            lines.append(f"~ {path}: {after[path]} was {before[path]}")
    return lines or ["no field differs: names, documentation or attributes do"]


def _fields(schema: AvroSchema, tree: Json, path: str, inside: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each field with its type and default in words, inside out of lists, maps and unions; no type twice."""
    if isinstance(tree, str):
        tree = schema.definitions.get(tree, tree)
    if isinstance(tree, list):
        for branch in tree:
            yield from _fields(schema, branch, path, inside)
    elif isinstance(tree, dict) and tree["type"] in RECORDS and tree["name"] not in inside:
        for field in tree["fields"]:
            step = f"{path}.{field['name']}" if path else field["name"]
            default = f" = {json.dumps(field['default'])}" if "default" in field else ""
            yield step, f"{_in_words(field['type'])}{default}"
            yield from _fields(schema, field["type"], step, (*inside, tree["name"]))
    elif isinstance(tree, dict) and tree["type"] in ("array", "map"):
        yield from _fields(schema, tree.get("items", tree.get("values")), path, inside)


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
