"""Read a table's branch with one engine for as long as the process lives, and print what each look found.

    python -m tests.bench.load.fresh_reader ENGINE WAREHOUSE BRANCH HOME

Every half second the reader asks the catalog for the head of the branch. If the head is new, the engine reads
the rows behind the newest offset that the reader has, in each partition. A line of output is JSON: `at`, the
time when the rows were in the reader's memory, and `sent`, by partition the time of each row's message, in
seconds. A row that is there twice ends the process with an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from millrace_demo.table import extension_of
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.bench.load.latency import PARTITIONS
from tests.bench.load.servers import TOPIC
from tests.bench.load.ways import sqlite_catalog
from tests.readers.engines import ON_THIS_MACHINE, Engine, iceberg_jars

PAUSE_S = 0.5
Row = tuple[int, int, int]
"""Partition, offset, and the message's time in milliseconds."""
Ask = Callable[[Table, str], Iterable[Row]]
"""Read the rows of the branch that a condition selects."""


class RowTwice(Exception):
    """The branch has a row twice."""


def pyiceberg(branch: str, warehouse: Path, home: Path) -> Ask:
    """Read with pyiceberg, by the name of the branch."""

    def ask(table: Table, condition: str) -> Iterable[Row]:
        columns = ("_topic_partition", "_offset", "_timestamp")
        found = table.scan(row_filter=condition, selected_fields=columns).use_ref(branch).to_arrow()
        micros = found["_timestamp"].cast("int64").to_pylist()
        places = zip(found[columns[0]].to_pylist(), found[columns[1]].to_pylist(), micros, strict=True)
        return [(partition, offset, micro // 1000) for partition, offset, micro in places]

    return ask


def duckdb(branch: str, warehouse: Path, home: Path) -> Ask:
    """Read with DuckDB, by the snapshot's id."""
    import duckdb as engine

    connection = engine.connect(config={"autoinstall_known_extensions": False})
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("avro", "iceberg"):  # the second needs the first
        connection.load_extension(extension_of(name, engine.__version__))

    def ask(table: Table, condition: str) -> Iterable[Row]:
        head = table.metadata.snapshot_by_name(branch)
        assert head is not None
        query = (
            "SELECT _topic_partition, _offset, epoch_ms(_timestamp)"
            f" FROM iceberg_scan(?, snapshot_from_id = {head.snapshot_id}) WHERE {condition}"
        )
        return connection.execute(query, [table.metadata_location]).fetchall()

    return ask


def spark(branch: str, warehouse: Path, home: Path) -> Ask:
    """Read with Spark and Iceberg's runtime, by the name of the branch."""
    settings = {**sqlite_catalog(warehouse), "spark.sql.catalog.millrace.cache-enabled": "false"}
    engine = Engine(home, "spark", json.dumps(ON_THIS_MACHINE | settings | {"spark.jars": iceberg_jars()}))

    def ask(table: Table, condition: str) -> Iterable[Row]:
        name = ".".join(["millrace", *table.name()])
        rows = engine(
            "SELECT _topic_partition, _offset, unix_millis(_timestamp)"
            f" FROM {name} VERSION AS OF '{branch}' WHERE {condition}"
        )
        return [(partition, offset, sent) for partition, offset, sent in rows]

    return ask


ENGINES: dict[str, Callable[[str, Path, Path], Ask]] = {
    "pyiceberg": pyiceberg,
    "DuckDB": duckdb,
    "Spark": spark,
}


class Looks:
    """Rows that a reader has seen, by their newest offset in each partition."""

    def __init__(self) -> None:
        self._newest = dict.fromkeys(range(PARTITIONS), -1)

    def missing(self) -> str:
        """Return the condition that selects the rows not seen."""
        return " or ".join(
            f"(_topic_partition = {partition} and _offset > {offset})"
            for partition, offset in self._newest.items()
        )

    def add(self, rows: Iterable[Row]) -> dict[int, list[float]]:
        """Return the times of new rows in seconds, by partition. Raise RowTwice if a row is there twice."""
        sent: dict[int, list[float]] = {}
        for partition, offset, sent_ms in sorted(rows):
            if offset <= self._newest[partition]:
                raise RowTwice(f"offset {offset} of partition {partition} is there twice")
            self._newest[partition] = offset
            sent.setdefault(partition, []).append(sent_ms / 1000)
        return sent


def main(engine: str, warehouse: str, branch: str, home: str) -> None:
    """Look until the process is ended."""
    ask, looks, shown = ENGINES[engine](branch, Path(warehouse), Path(home)), Looks(), None
    with closing(connect(open_storage(warehouse))) as catalog:
        while True:
            began = time.monotonic()
            try:
                table = catalog.load_table(table_identifier(TOPIC))
                head = table.metadata.snapshot_by_name(branch)
            except NoSuchTableError:
                head = None
            if head is not None and head.snapshot_id != shown:
                rows = [*ask(table, looks.missing())]
                at, shown = time.time(), head.snapshot_id
                print(json.dumps({"at": at, "sent": looks.add(rows)}), flush=True)
            time.sleep(max(0.0, PAUSE_S - (time.monotonic() - began)))


if __name__ == "__main__":
    main(*sys.argv[1:])
