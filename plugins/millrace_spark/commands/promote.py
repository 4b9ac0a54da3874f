"""`millrace promote`: another schema for a table, recorded."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands.options import JSON, WAREHOUSE, show, table_of

if TYPE_CHECKING:
    from millrace.registry.client import SchemaRegistryClient


@click.command()
@click.argument("topic")
@WAREHOUSE
@click.option("--registry", default="", metavar="URL", help="The schema registry.")
@click.option(
    "--schema-id", type=int, default=None, help="A registered schema of the topic; the newest without it."
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for those who read the history.")
@click.option("--list", "list_", is_flag=True, help="Show which schemas the table has had, change nothing.")
@JSON
def promote(
    topic: str,
    warehouse: str,
    registry: str,
    schema_id: int | None,
    reason: str,
    list_: bool,
    as_json: bool,
) -> None:
    """Give the table of TOPIC another schema: loads from now on have its columns.

    Refused unless the new schema can read what was written with the old one, and the files that are there
    can be read with its columns. Rows loaded before have null in a column they lack.

    Example: millrace promote PageView --warehouse /data/warehouse --registry http://127.0.0.1:8081
    --reason "country is in every event now"
    """
    if list_:
        _show_history(warehouse, topic, as_json)
        return
    if not registry or not reason:
        raise ConfigError("give --registry and --reason: a promotion says why; or --list to see the history")
    from millrace.registry.client import SchemaRegistryClient
    from millrace_spark.filesystem import open_filesystem
    from millrace_spark.promotions import promote as record_promotion
    from millrace_spark.source import RegistryLookup

    with SchemaRegistryClient(registry) as client:
        wanted = _registered(client, topic, schema_id)
        promotion, changes = record_promotion(
            open_filesystem(warehouse), topic, wanted, reason, RegistryLookup(client)
        )
    if as_json:
        recorded = None if promotion is None else dataclasses.asdict(promotion)
        click.echo(json.dumps({"topic": topic, "promotion": recorded, "changes": changes}))
    elif promotion is None:
        click.echo(f"{topic}: schema {wanted} is the table's already")
    else:
        click.echo(
            f"{topic}: loads from now on have schema {wanted}, before it was"
            f" {promotion.previous_schema_id} (promotion {promotion.number})"
        )
        for change in changes:
            click.echo(f"  {change}")


def _registered(client: SchemaRegistryClient, topic: str, schema_id: int | None) -> int:
    """The id of a schema that is registered under the topic's name."""
    from millrace.registry.client import UnknownSchema

    try:
        if schema_id is None:
            return client.latest(topic).schema_id
        if client.lookup(topic, client.schema(schema_id)) is not None:
            return schema_id
    except UnknownSchema:
        pass
    what = "no schema" if schema_id is None else f"no schema {schema_id}"
    raise MillraceError(
        f"{what} is registered for subject {topic!r} at {client.url}: register it with"
        " `millrace schemas apply`, then promote again"
    )


def _show_history(warehouse: str, topic: str, as_json: bool) -> None:
    from millrace_spark.filesystem import open_filesystem
    from millrace_spark.promotions import history

    entries = history(open_filesystem(warehouse), topic)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(entry) for entry in entries]))
        return
    table = table_of("promotion", "schema", "from load", "since", "by", "reason")
    for entry in entries:
        shown = (entry.number, entry.schema_id, entry.first_load, entry.created, entry.by, entry.reason)
        table.add_row(*("" if each is None else str(each) for each in shown))
    show(table)
