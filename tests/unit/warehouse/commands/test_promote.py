"""`millrace promote`: which schema it takes, what it says, and the history it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millrace_registry.client
from millrace_warehouse.commands import execute
from millrace_warehouse.commands.upkeep import promote as command
from millrace_warehouse.load.load import load_topic
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, load_run, with_field

COUNTED, WIDE, COUNTRY = 8, 9, 10
_WIDE = with_field("count", "long", 0)
SCHEMAS = {
    COUNTED: with_field("count", "int", 0),
    WIDE: _WIDE,
    COUNTRY: with_field("country", ["null", "string"], None, _WIDE),
}


class Registry:
    """As much of a registry's client as the command asks of it."""

    url = "http://r"

    def __init__(self, schemas: dict[int, Any], registered: list[int]) -> None:
        self.schemas, self.registered = schemas, registered

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def schema(self, schema_id: int) -> Any:
        if schema_id not in self.schemas:
            raise millrace_registry.client.UnknownSchema("unknown")
        return self.schemas[schema_id]

    def find_schema(self, schema_id: int) -> Any | None:
        return self.schemas.get(schema_id)

    def lookup(self, subject: str, schema: Any) -> Any:
        return next((i for i in self.registered if self.schemas[i] == schema), None)

    def latest(self, subject: str) -> Any:
        newest = max(self.registered)
        return millrace_registry.client.RegisteredVersion(newest, 1, self.schemas[newest])


def test_the_command_takes_the_newest_schema_or_a_registered_one_and_says_what_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog(1)
    log.schemas = {COUNTED: SCHEMAS[COUNTED]}
    log.append_events(0, [START], schema=COUNTED, count=5)
    load_topic(load_run(log, tmp_path), TOPIC)
    registry = Registry(SCHEMAS, [COUNTED, COUNTRY])
    monkeypatch.setattr(execute, "SchemaRegistryClient", lambda _: registry)
    options = [TOPIC, "--warehouse", str(tmp_path), "--registry", "http://r"]
    silent = CliRunner().invoke(command, options)
    assert "give --registry and --reason" in str(silent.exception)
    for schema_id in ("9", "99"):
        other = CliRunner().invoke(command, [*options, "--reason", "x", "--schema-id", schema_id])
        assert f"no schema {schema_id} is registered for subject 'PageView' at http://r" in str(
            other.exception
        )
    done = CliRunner().invoke(command, [*options, "--reason", "country is wanted"])
    assert done.stdout.splitlines() == [
        "PageView: loads from now on have schema 10, before it was 8 (record 2)",
        "  new column country: null in rows loaded before",
        "  column count is long from now on, it was int",
    ]
    again = CliRunner().invoke(command, [*options, "--reason", "country is wanted", "--json"])
    said = {"topic": TOPIC, "schema_id": COUNTRY, "record": None, "changes": []}
    assert json.loads(again.stdout) == said
    listed = CliRunner().invoke(command, [*options[:3], "--list", "--json"])
    entries = [(e["number"], e["schema_id"], e["first_load"]) for e in json.loads(listed.stdout)]
    assert entries == [(1, COUNTED, 1), (2, COUNTRY, None)]
    shown = CliRunner().invoke(command, [*options[:3], "--list"]).stdout
    assert "country is wanted" in shown
