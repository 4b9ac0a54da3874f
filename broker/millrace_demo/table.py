"""Reading the published tables without code of Millrace: by the catalog's row and Iceberg's metadata.

The catalog of a local warehouse is a SQLite file; a table's row in it names the table's newest metadata.
"""

from __future__ import annotations

import importlib.util
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
from pyiceberg.table import StaticTable


def metadata_location(warehouse: Path, topic: str) -> str | None:
    """Return the newest metadata of a topic's table; None before the first publication."""
    catalog = warehouse / "catalog.db"
    if not catalog.is_file():
        return None
    query = (
        "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = 'millrace' AND table_name = ?"
    )
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
            return None  # a publication is creating the catalog
        row = database.execute(query, (topic,)).fetchone()
    return None if row is None else str(row[0])


def rows_by_hour(location: str) -> Counter[str]:
    """Return the number of a table's rows by hour, `2015-05-17T10`, read by pyiceberg."""
    scan = StaticTable.from_metadata(location).scan(selected_fields=("_time",))
    times = scan.to_arrow()["_time"].to_numpy()
    hours, counts = np.unique(np.datetime_as_string(times.astype("datetime64[h]")), return_counts=True)
    return Counter(dict(zip(hours.tolist(), counts.tolist(), strict=True)))


def live_rows(location: str) -> tuple[int, str]:
    """Return the number of rows in a table's branch `live`, 0 without the branch, and the reader's name."""
    table = StaticTable.from_metadata(location)
    head = table.snapshot_by_name("live")
    if head is None:
        return 0, "pyiceberg"
    if (counted := rows_by_duckdb(location, head.snapshot_id)) is not None:
        return counted, "DuckDB"
    return table.scan(snapshot_id=head.snapshot_id).count(), "pyiceberg"


def rows_by_duckdb(location: str, snapshot_id: int | None = None) -> int | None:
    """Return the number of a table's rows, counted by DuckDB with its iceberg extension; None if the
    extension is missing. Without a snapshot's id they are those of the table's main branch.

    The extension may be installed for DuckDB, or come from the PyPI packages `duckdb-extension-iceberg` and
    `duckdb-extension-avro` of the same version. Nothing is downloaded.
    """
    if importlib.util.find_spec("duckdb") is None:
        return None
    import duckdb

    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        try:
            for name in ("avro", "iceberg"):  # the second needs the first
                connection.load_extension(extension_of(name, duckdb.__version__))
        except duckdb.Error:
            return None
        at = "" if snapshot_id is None else f", snapshot_from_id = {snapshot_id}"
        row = connection.execute(f"SELECT count(*) FROM iceberg_scan(?{at})", [location]).fetchone()
    return None if row is None else int(row[0])


def extension_of(name: str, version: str) -> str:
    """Return the file of an extension from PyPI, if it fits this DuckDB.

    Otherwise return the name that DuckDB looks up.
    """
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        return name
    file = Path(spec.origin).parent / "extensions" / f"v{version}" / f"{name}.duckdb_extension"
    return str(file) if file.is_file() else name
