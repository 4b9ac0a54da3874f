"""Result of `millrace tables`: the names of a topic's table, its state, and a command line for each reader.

`make test-readers` runs each line as it is printed. A line holds the settings of the catalog that this
process knows, and no secret. Further settings of a catalog or a storage belong in the reader's own
configuration. Changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import Topic, load_numbers, read_checked
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.publish.table import PATH, find_table
from millrace_warehouse.storage.interface import Storage

SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Iceberg's newest runtime for Spark 4.1. Spark 4.0 has a separate one; 4.2 and 4.3 have none yet."""
SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A topic's table as its newest publication left it, and the rows that wait."""

    topic: str
    table: str
    """Name in the catalog, such as `millrace.PageView`."""
    catalog: str
    location: str
    metadata_location: str
    """The file that is the table at this moment, for readers without a catalog."""
    snapshot_id: int | None
    publication: int
    published_at: str
    schema: int
    """Number of the schema in `schema/`."""
    rows: int
    published: str
    """First and last published hour; hours between them may wait."""
    complete: str
    """The hours [from, to) that are complete by the auditor's verdict, without a gap."""
    through_load: int
    loads_behind: int
    """Loads after `through_load`: the next publication considers them."""
    waiting_hours: int
    waiting_rows: int
    """Waiting rows of loads up to `through_load`, in hours that are not published."""
    readers: Mapping[str, str]
    """Reader -> a command line for the shell."""


def open_table(catalog: Catalog, topic: str) -> Table:
    """Return the published table of a topic, as of now. Raise MillraceError when nothing was published."""
    table = find_table(catalog, topic)
    if table is None or PATH not in table.properties:
        raise MillraceError(
            f"catalog {catalog.name} has no published table of {topic}: run `millrace publish {topic}` first"
        )
    return table


def describe_table(storage: Storage, catalog: Catalog, topic: str) -> TableDescription:
    """Describe a topic's table and how to read it. Raise MillraceError when nothing was published."""
    table = open_table(catalog, topic)
    publication = read_checked(storage, Publication, table.properties[PATH])
    snapshot = table.current_snapshot()
    waiting = [load.rows for loads in publication.unpublished.values() for load in loads]
    return TableDescription(
        topic=topic,
        table=".".join(table.name()),
        catalog=catalog.name,
        location=table.location(),
        metadata_location=table.metadata_location,
        snapshot_id=snapshot.snapshot_id if snapshot is not None else None,
        publication=publication.number,
        published_at=publication.created,
        schema=publication.schema,
        rows=publication.rows,
        published=f"{publication.published[0][0]} to {publication.published[-1][1]}"
        if publication.published
        else "",
        complete=f"{publication.complete_from} to {publication.complete_until}"
        if publication.complete_until
        else "",
        through_load=publication.loads.load,
        loads_behind=len(load_numbers(Topic(storage, topic), publication.loads.load)),
        waiting_hours=len(publication.unpublished),
        waiting_rows=sum(waiting),
        readers=_readers(storage, catalog, topic, table),
    )


def _readers(storage: Storage, catalog: Catalog, topic: str, table: Table) -> dict[str, str]:
    local = isinstance(catalog, SqlCatalog) and catalog.properties["uri"].startswith("sqlite:///")
    identifier, metadata = ".".join(table.name()), table.metadata_location
    named = "" if local else f", catalog={catalog.name!r}"
    scan = "iceberg_scan('{}')".format(metadata.replace("'", "''"))
    lines = {
        "DuckDB": shlex.join(["duckdb", "-c", f"INSTALL iceberg; LOAD iceberg; FROM {scan}"]),
        "pandas": _python(
            "from pyiceberg.table import StaticTable",
            f"print(StaticTable.from_metadata({metadata!r}).scan().to_pandas())",
        ),
        "polars": _python("import polars", f"print(polars.scan_iceberg({metadata!r}).collect())"),
        "PySpark 4.0 to 4.3": _python(
            "from pyspark.sql import SparkSession",
            "from millrace_spark import tables",
            "spark = SparkSession.builder.getOrCreate()",
            f"tables.read(spark, {storage.root!r}, {topic!r}{named}).show()",
        ),
    }
    if settings := _spark_settings(storage, catalog, local=local):
        packages = ",".join([SPARK_RUNTIME, *([SQLITE_DRIVER] if local else [])])
        prefix = f"spark.sql.catalog.{catalog.name}"
        words = ["spark-sql", "--packages", packages]
        words += [f"--conf={prefix}{key}={value}" for key, value in settings.items()]
        words += ["-e", f"SELECT * FROM {catalog.name}.{identifier} LIMIT 10"]
        lines["Spark 4.1 with Iceberg"] = shlex.join(words)
    return lines


def _spark_settings(storage: Storage, catalog: Catalog, *, local: bool) -> dict[str, str]:
    """Return the settings of Iceberg's catalog in Spark, or {} for a kind of catalog that was not tested."""
    settings = {"": "org.apache.iceberg.spark.SparkCatalog"}
    if local:
        # Iceberg's JDBC catalog stores the tables under its own name, so Spark must use the same name.
        uri = "jdbc:sqlite:" + catalog.properties["uri"].removeprefix("sqlite:///")
        return settings | {".type": "jdbc", ".uri": uri, ".warehouse": storage.root}
    if isinstance(catalog, RestCatalog):
        given = {f".{key}": catalog.properties.get(key, "") for key in ("uri", "warehouse", "prefix")}
        return settings | {".type": "rest"} | {key: value for key, value in given.items() if value}
    return {}


def _python(*statements: str) -> str:
    return shlex.join(["python", "-c", "; ".join(statements)])
