"""Schemas and their references: each schema is parsed and compared once for a request.

This module finds the rows of references and limits their number and size. Rules of subjects and ids are
handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millrace_registry.avro_schema import AvroSchema, Json, parse
from millrace_registry.compatibility import Level, incompatibilities
from millrace_registry.errors import InvalidSchema
from millrace_registry.store import Reference, StoredSchema, Transaction

MAX_REFERENCES = 250
"""Most schemas to which one schema may refer, directly and through other schemas."""
MAX_REFERENCE_DEPTH = 32
"""Longest chain of references from one schema to another."""
MAX_REFERENCED_CHARACTERS = 2 << 20
"""Longest text of all the schemas to which one schema refers, directly and through other schemas."""

MAX_COMPARED_CHARACTERS = 8 << 20
"""Longest text of compared versions that are kept parsed: a subject may have any number of versions."""
_Key: TypeAlias = tuple[str, Sequence[int]]
"""The text of a schema, and the ids of the schemas to which it refers."""


@dataclass(frozen=True, slots=True)
class _Parsed:
    schema: AvroSchema
    sizes: Mapping[int, int]
    """Characters of each schema to which this schema refers, directly and through other schemas, by id."""
    depth: int


class SchemaParser:
    """Parses the schemas of one request, also across its transactions: a stored schema never changes.

    The results for candidates are kept, and the reasons of comparisons: a caller that parses and compares
    before it takes the write lock, and again under the lock, works under the lock only on schemas registered
    in between.
    """

    def __init__(self) -> None:
        self._parsed: dict[_Key, _Parsed] = {}
        self._compared: dict[_Key, _Parsed] = {}
        """Schemas of compared versions and their references; forgotten above MAX_COMPARED_CHARACTERS."""
        self._compared_characters = 0
        self._reasons: dict[tuple[int, int, int, Level], list[str]] = {}
        self._contents: dict[tuple[int, Sequence[Reference]], str] = {}

    def content(self, schema: AvroSchema, references: Sequence[Reference]) -> str:
        """Return the fingerprint of a schema parsed here with its references."""
        key = id(schema), references
        if key not in self._contents:
            self._contents[key] = schema.fingerprint(
                sorted((r.name, r.subject, r.version) for r in references)
            )
        return self._contents[key]

    def compare(
        self, rows: Transaction, new: AvroSchema, old_id: int, version: int, level: Level
    ) -> list[str]:
        """Return reasons why a schema parsed here breaks the level with a version's schema, one line each."""
        key = id(new), old_id, version, level  # `new` lives as long as this parser
        if key not in self._reasons:
            stored = rows.schema(old_id)
            assert stored is not None, "a schema's row is never deleted"
            if self._compared_characters > MAX_COMPARED_CHARACTERS:
                self._compared.clear()
                self._compared_characters = 0
            old = self._parse(rows, stored.text, stored.references, self._compared)
            self._compared_characters += len(stored.text) + sum(old.sizes.values())
            self._reasons[key] = incompatibilities(new, old.schema, version, level)
        return self._reasons[key]

    def parse(self, rows: Transaction, text: str, references: Sequence[Reference]) -> AvroSchema:
        """Return the schema in a text. Raise InvalidSchema if it is invalid, or its references are missing or
        too large.

        A schema with a flaw is accepted: stored schemas may have been imported with the flaw.
        """
        return self._parse(rows, text, references, self._parsed).schema

    def _parse(
        self, rows: Transaction, text: str, references: Sequence[Reference], known: dict[_Key, _Parsed]
    ) -> _Parsed:
        targets = _targets(rows, references)
        key = text, tuple(target.id for target in targets)
        if key in self._parsed:
            return self._parsed[key]
        if key not in known:
            parsed = [self._parse(rows, target.text, target.references, known) for target in targets]
            sizes = {target.id: len(target.text) for target in targets}
            for target in parsed:
                sizes.update(target.sizes)
            depth = 1 + max((target.depth for target in parsed), default=-1)
            _check_extent(sizes, depth)
            definitions = _definitions(references, [target.schema for target in parsed])
            known[key] = _Parsed(parse(text, definitions, flawed_too=True), sizes, depth)
        return known[key]


def _check_extent(sizes: Mapping[int, int], depth: int) -> None:
    characters = sum(sizes.values())
    if len(sizes) > MAX_REFERENCES or characters > MAX_REFERENCED_CHARACTERS:
        raise InvalidSchema(
            f"the schema refers to {len(sizes)} schemas of {characters} characters in all: refer to at most"
            f" {MAX_REFERENCES} schemas of {MAX_REFERENCED_CHARACTERS} characters"
        )
    if depth > MAX_REFERENCE_DEPTH:
        raise InvalidSchema(f"references lead through more than {MAX_REFERENCE_DEPTH} schemas")


def _targets(rows: Transaction, references: Sequence[Reference]) -> list[StoredSchema]:
    if len(references) > MAX_REFERENCES:
        raise InvalidSchema(f"the schema has {len(references)} references: give at most {MAX_REFERENCES}")
    targets = []
    for reference in references:
        versions = rows.versions(reference.subject, reference.version, deleted=None)
        if not versions:
            raise InvalidSchema(f"{_in_words(reference)} is not registered: register it first")
        targets.append(versions[0].schema)
    return targets


def _definitions(references: Sequence[Reference], schemas: Sequence[AvroSchema]) -> dict[str, Json]:
    """Return every named type that the references bring, by full name."""
    definitions: dict[str, Json] = {}
    for reference, schema in zip(references, schemas, strict=True):
        if reference.name not in schema.definitions:
            names = ", ".join(schema.definitions) or "no named type"
            raise InvalidSchema(f"{_in_words(reference)} defines {names}")
        for name, definition in schema.definitions.items():
            if definitions.setdefault(name, definition) != definition:
                raise InvalidSchema(f"{_in_words(reference)} defines {name} otherwise than another reference")
    return definitions


def _in_words(reference: Reference) -> str:
    return f"reference {reference.name!r}: subject {reference.subject!r} version {reference.version}"
