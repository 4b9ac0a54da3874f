"""What there is to know of a topic's table, and for each reader a line that reads it.

The lines hold what this process knows of the catalog and no secret: where a catalog is configured for
pyiceberg, they name it, and the reader brings its own credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import load_numbers
from millrace_warehouse.publish.catalog import table_identifier
from millrace_warehouse.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A topic's table as it is now."""

    topic: str
    table: str
    """`millrace.PageView`, in the catalog."""
    catalog: str
    location: str
    metadata_location: str
    """The file that is the table, for readers that want no catalog."""
    publication: int
    snapshot_id: int | None
    rows: int | None
    """As the head of main states them; None where a foreign writer left them out."""
    through_load: int
    newest_load: int
    """Later than `through_load` while loads wait to be looked at."""
    complete_until: str | None
    schema: int
    """Number of the record in `schema/`."""
    readers: Mapping[str, str]
    """Reader -> a line to paste."""


def describe_table(storage: Storage, catalog: Catalog, topic: str) -> TableDescription:
    """The table of a topic and how to read it; MillraceError when nothing of the topic was published."""
    identifier = ".".join(table_identifier(topic))
    try:
        table = catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        raise MillraceError(
            f"catalog {catalog.name} has no table {identifier}: run `millrace publish {topic}` first"
        ) from None
    properties, snapshot = table.properties, table.current_snapshot()
    if (owner := properties.get("millrace.topic")) != topic:
        owner = f"topic {owner}" if owner else "somebody else"
        raise MillraceError(f"table {identifier} is of {owner}, not of {topic}: check topic and catalog")
    total = snapshot.summary.get("total-records") if snapshot is not None and snapshot.summary else None
    return TableDescription(
        topic=topic,
        table=identifier,
        catalog=catalog.name,
        location=table.location(),
        metadata_location=table.metadata_location,
        publication=int(properties["millrace.publication"]),
        snapshot_id=snapshot.snapshot_id if snapshot is not None else None,
        rows=None if total is None else int(total),
        through_load=int(properties["millrace.through"]),
        newest_load=max(load_numbers(storage, topic), default=0),
        complete_until=properties.get("millrace.complete-until") or None,
        schema=int(properties["millrace.schema"]),
        readers=_readers(storage, catalog, topic, table),
    )


def _readers(storage: Storage, catalog: Catalog, topic: str, table: Table) -> dict[str, str]:
    name, identifier, metadata = catalog.name, ".".join(table.name()), table.metadata_location
    uri = catalog.properties.get("uri", "")
    own = uri.startswith("sqlite:///")
    opened = f"load_catalog({name!r}, type='sql', uri={uri!r})" if own else f"load_catalog({name!r})"
    lines = {
        "pyiceberg": "from pyiceberg.catalog import load_catalog;"
        f" {opened}.load_table({identifier!r}).scan().to_arrow()",
        "DuckDB": f"INSTALL iceberg; LOAD iceberg; FROM iceberg_scan('{metadata}');",
        "polars": f"import polars; polars.scan_iceberg({metadata!r}).collect()",
        "PySpark": "from millrace_spark import tables;"
        f" tables.read(spark, {storage.root!r}, {topic!r}{'' if own else f', catalog={name!r}'})",
    }
    if own:
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc"}
        settings |= {".uri": f"jdbc:sqlite:{uri.removeprefix('sqlite:///')}", ".warehouse": storage.root}
        words = " ".join(f"--conf spark.sql.catalog.{name}{key}={value}" for key, value in settings.items())
        lines["Spark with Iceberg's runtime"] = f"spark-sql {words} -e 'SELECT * FROM {name}.{identifier}'"
    else:
        lines["Spark with Iceberg's runtime"] = f"SELECT * FROM {name}.{identifier}"
    return lines
