"""An engine in a process of its own: each line of input is a JSON query, each line of output its JSON answer.

    python answering.py spark '{"spark.sql.catalog.millrace": …}'      a query is SQL
    python answering.py duckdb                                         a query is SQL
    python answering.py pyiceberg (or pandas, polars)                  a query is a metadata file: its hours

The answer is {"rows": [[…]]} or {"error": "…"}. Run by the readers' Python, without Millrace's code.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

Rows = list[list[Any]]


def spark(settings: str) -> Callable[[str], Rows]:
    """A session with Iceberg's runtime."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    for key, value in json.loads(settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return lambda query: [list(row) for row in session.sql(query).collect()]


def duckdb() -> Callable[[str], Rows]:
    """A connection with the extension that `INSTALL iceberg` has put into the home folder."""
    import duckdb as engine

    connection = engine.connect()
    connection.execute("LOAD iceberg")
    return lambda query: [list(row) for row in connection.execute(query).fetchall()]


def pyiceberg() -> Callable[[str], Rows]:
    """pyiceberg with its own FileIO: rows by hour."""
    from pyiceberg.table import StaticTable

    def times(metadata: str) -> Iterable[Any]:
        scan = StaticTable.from_metadata(metadata).scan(selected_fields=("_time",))
        return list(scan.to_arrow()["_time"].to_pylist())

    return by_hour(times)


def pandas() -> Callable[[str], Rows]:
    """pandas, by pyiceberg."""
    from pyiceberg.table import StaticTable

    def times(metadata: str) -> Iterable[Any]:
        frame = StaticTable.from_metadata(metadata).scan(selected_fields=("_time",)).to_pandas()
        return list(frame["_time"])

    return by_hour(times)


def polars() -> Callable[[str], Rows]:
    """polars, which plans with pyiceberg and reads the files itself."""
    import polars as engine  # type: ignore[import-not-found]
    from pyiceberg.table import StaticTable

    def times(metadata: str) -> Iterable[Any]:
        frame = engine.scan_iceberg(StaticTable.from_metadata(metadata)).select("_time")
        return list(frame.collect()["_time"])

    return by_hour(times)


def by_hour(times: Callable[[str], Iterable[Any]]) -> Callable[[str], Rows]:
    """Rows by hour of a reader's event times."""

    def hours(metadata: str) -> Rows:
        counted = Counter(time.strftime("%Y-%m-%dT%H") for time in times(metadata))
        return [[hour, rows] for hour, rows in counted.items()]

    return hours


def main(engine: str, *arguments: str) -> None:
    """Answer until the input ends."""
    engines: dict[str, Callable[..., Callable[[str], Rows]]] = {
        "spark": spark,
        "duckdb": duckdb,
        "pyiceberg": pyiceberg,
        "pandas": pandas,
        "polars": polars,
    }
    ask = engines[engine](*arguments)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"rows": ask(json.loads(line))}
        except Exception as error:
            causes = [line for line in str(error).splitlines() if not line.startswith("\tat ")]
            answer = {"error": "\n".join([type(error).__name__, *causes])}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
