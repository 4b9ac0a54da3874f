"""Avro messages for people and scripts: decoded with the schema whose id they begin with."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import fastavro

from millrace_registry.client import SchemaRegistryClient, UnknownSchema

_ID_BYTES = 5


class AvroValues:
    """Decodes messages by a registry, each schema fetched once."""

    def __init__(self, registry: SchemaRegistryClient) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    def __call__(self, value: bytes | None) -> object:
        """The record as JSON takes it; what is no Avro message of this registry as `printable` gives it."""
        if value is None or len(value) < _ID_BYTES or value[0]:
            return printable(value)
        schema = self._schema(int.from_bytes(value[1:_ID_BYTES], "big"))
        if schema is None:
            return printable(value)
        body = BytesIO(value[_ID_BYTES:])
        try:
            record = fastavro.schemaless_reader(body, schema, None)
        except Exception:  # fastavro raises what its code happens to; the bytes say more than that
            return printable(value)
        return record if not body.read(1) else printable(value)

    def _schema(self, schema_id: int) -> Any:
        """Parsed; None when the registry has no Avro schema of that id; one may be registered in a moment."""
        if schema_id not in self._schemas:
            try:
                self._schemas[schema_id] = fastavro.parse_schema(self._registry.schema(schema_id))
            except UnknownSchema:
                return None
            except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError):
                self._schemas[schema_id] = None  # of another kind, JSON Schema for one
        return self._schemas[schema_id]


def printable(value: object) -> object:
    """For JSON: bytes as text, or as base64 where they are none; dates and decimals as their text."""
    if not isinstance(value, bytes):
        return value if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
