"""Result of `millrace tables`: the names of a topic's table, its state, and a command line for each reader.

`make test-readers` runs each line as it is printed. A line holds the settings of the catalog that this
process knows, and no secret. Further settings of a catalog or a storage belong in the reader's own
configuration. Changes nothing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import hour_of, number_of
from millrace_warehouse.history.layout import Topic, load_numbers, read_checked
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import is_on, lag_s
from millrace_warehouse.publish.table import PATH, counted_rows, find_table
from millrace_warehouse.storage.interface import Storage

SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Iceberg's newest runtime for Spark 4.1. Spark 4.0 has a separate one; 4.2 and 4.3 have none yet."""
SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDescription:
    """Branch `live` of a table: rows that are not proven, together with the published rows."""

    snapshot_id: int | None
    """Head of the branch; None if another program has dropped the branch, until the next load."""
    behind_s: float
    """Seconds since the commit of the head; 0 if the branch shows every load and publication and has no tail.
    Rows that came to the warehouse after that commit may be missing."""
    rows: int
    rows_not_proven: int
    """Rows of the branch minus rows of `main`."""
    readers: Mapping[str, str]
    """Reader -> a command line for the shell that reads the branch."""


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
    publication: int = 0
    """Number of the newest publication; 0 before the first."""
    published_at: str = ""
    schema: int = 0
    """Number of the publication's schema in `schema/`."""
    rows: int = 0
    published: str = ""
    """The range [from, to) from the first to the end of the last published hour; hours in it may wait."""
    complete: str = ""
    """The hours [from, to) that are complete by the auditor's verdict, without a gap."""
    through_load: int = 0
    waiting_hours: int = 0
    waiting_rows: int = 0
    """Waiting rows of loads up to `through_load`, in hours that are not published."""
    loads_behind: int
    """Loads after `through_load`: the next publication considers them."""
    live: LiveDescription | None
    """Branch `live`; None if it is off."""
    readers: Mapping[str, str]
    """Reader -> a command line for the shell that reads the published rows; empty before a publication."""


def open_table(catalog: Catalog, topic: str) -> Table:
    """Return the published table of a topic, as of now. Raise MillraceError when nothing was published."""
    table = find_table(catalog, topic)
    if table is None or PATH not in table.properties:
        raise MillraceError(
            f"catalog {catalog.name} has no published table of {topic}: run `millrace publish {topic}` first"
        )
    return table


def open_live(catalog: Catalog, topic: str) -> Table:
    """Return a topic's table that has branch `live`, as of now. Raise MillraceError without the branch."""
    table = find_table(catalog, topic)
    if table is None or not is_on(table):
        raise MillraceError(
            f"catalog {catalog.name} has no branch {LIVE} of {topic}: set live = true for the topic in the"
            f" file of topics, or run `millrace load {topic} --live`"
        )
    if LIVE not in table.metadata.refs:
        raise MillraceError(
            f"another program has dropped branch {LIVE} of {topic}: the next load or publication recreates it"
        )
    return table


def describe_table(storage: Storage, catalog: Catalog, topic: str) -> TableDescription:
    """Describe a topic's table and how to read it.

    Raise MillraceError when nothing was published and branch `live` is off.
    """
    table = find_table(catalog, topic)
    if table is None or not is_on(table):
        table = open_table(catalog, topic)
    publication = None
    if path := table.properties.get(PATH):
        publication = read_checked(storage, Publication, path)
    snapshot = table.current_snapshot()
    stored = Topic(storage, topic)
    through = publication.loads.load if publication is not None else 0
    return TableDescription(
        topic=topic,
        table=".".join(table.name()),
        catalog=catalog.name,
        location=table.location(),
        metadata_location=table.metadata_location,
        snapshot_id=snapshot.snapshot_id if snapshot is not None else None,
        loads_behind=len(load_numbers(stored, through)),
        live=_live(stored, catalog, table) if is_on(table) else None,
        readers=_readers(stored, catalog, table) if publication is not None else {},
        **(_published(publication) if publication is not None else {}),
    )


def _published(publication: Publication) -> dict[str, Any]:
    waiting = [load.rows for loads in publication.unpublished.values() for load in loads]
    hours, until = publication.published, publication.complete_until
    return {
        "publication": publication.number,
        "published_at": publication.created,
        "schema": publication.schema,
        "rows": publication.rows,
        "published": f"{hours[0][0]} to {hour_of(number_of(hours[-1][1]) + 1)}" if hours else "",
        "complete": f"{publication.complete_from} to {until}" if until != publication.complete_from else "",
        "through_load": publication.loads.load,
        "waiting_hours": len(publication.unpublished),
        "waiting_rows": sum(waiting),
    }


def _live(topic: Topic, catalog: Catalog, table: Table) -> LiveDescription:
    now, head = time.time(), table.metadata.snapshot_by_name(LIVE)
    if head is None:
        since = now - table.metadata.last_updated_ms / 1000
        return LiveDescription(snapshot_id=None, behind_s=since, rows=0, rows_not_proven=0, readers={})
    rows = counted_rows(table, LIVE)[0]
    return LiveDescription(
        snapshot_id=head.snapshot_id,
        behind_s=lag_s(topic, table, head, now),
        rows=rows,
        rows_not_proven=max(rows - counted_rows(table)[0], 0),
        readers=_readers(topic, catalog, table, head),
    )


def _readers(topic: Topic, catalog: Catalog, table: Table, live: Snapshot | None = None) -> dict[str, str]:
    """Return the lines that read the published rows, or with the head of branch `live` the branch."""
    storage = topic.storage
    local = isinstance(catalog, SqlCatalog) and catalog.properties["uri"].startswith("sqlite:///")
    metadata = table.metadata_location
    options = ("" if local else f", catalog={catalog.name!r}") + (", live=True" if live else "")
    lines = {
        "DuckDB": _shell(["duckdb", "-c", f"INSTALL iceberg; LOAD iceberg; {_duckdb(metadata, live)}"]),
        "pandas": _python(
            "from pyiceberg.table import StaticTable",
            f"scan = StaticTable.from_metadata({metadata!r}).scan()",
            f"print(scan{f'.use_ref({LIVE!r})' if live else ''}.to_pandas())",
        ),
        "polars": _python(
            "import polars",
            f"scan = polars.scan_iceberg({metadata!r}{f', snapshot_id={live.snapshot_id}' if live else ''})",
            "print(scan.collect())",
        ),
        "PySpark 4.0 to 4.3": _python(
            "from pyspark.sql import SparkSession",
            "from millrace_spark import tables",
            "spark = SparkSession.builder.getOrCreate()",
            f"tables.read(spark, {storage.root!r}, {topic.name!r}{options}).show()",
        ),
    }
    if settings := _spark_settings(storage, catalog, local=local):
        packages = ",".join([SPARK_RUNTIME, *([SQLITE_DRIVER] if local else [])])
        prefix = f"spark.sql.catalog.{catalog.name}"
        words = ["spark-sql", "--packages", packages]
        words += [f"--conf={prefix}{key}={value}" for key, value in settings.items()]
        name = ".".join([catalog.name, *table.name()])
        branch = f"{name} VERSION AS OF '{LIVE}'" if live else name
        lines["Spark 4.1 with Iceberg"] = _shell([*words, "-e", f"SELECT * FROM {branch} LIMIT 10"])
        if live:
            # By file, so that each row of the branch is there once, whatever is published meanwhile.
            proven = (
                f"SELECT *, _file IN (SELECT file_path FROM {name}.files) AS proven FROM {branch} LIMIT 10"
            )
            lines["Spark 4.1 with Iceberg and a column `proven`"] = _shell([*words, "-e", proven])
    return lines


def _duckdb(metadata: str, live: Snapshot | None) -> str:
    path = metadata.replace("'", "''")
    if live is None:
        return f"FROM iceberg_scan('{path}')"
    warning = f"-- by number: DuckDB 1.5 takes a name like version => {LIVE} for main, without an error"
    return f"FROM iceberg_scan('{path}', snapshot_from_id = {live.snapshot_id}) {warning}"


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
    return _shell(["python", "-c", "; ".join(statements)])


def _shell(words: Sequence[str]) -> str:
    """Return a shell's line of the words. Code with single quotes gets double quotes where that is safe."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word) for word in words
    )
