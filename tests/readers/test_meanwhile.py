"""Readers count an access log by hour while its table changes: each answer is one publication, whole.

Millrace publishes, compacts and reads again; Spark compacts and expires.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from millrace_warehouse.history.hours import hour_of
from tests.access_log import AccessLog
from tests.published import Warehouse
from tests.readers.engines import Engine, spark_engine

Counts = Mapping[str, int]
PER_HOUR = "date_format(_time, \"yyyy-MM-dd'T'HH\")"
COMPACT = (
    "CALL millrace.system.rewrite_data_files(table => 'millrace.millrace.PageView',"
    " options => map('min-input-files', '2'))"
)
# Twenty publications stay, which is longer than any reader takes for an answer.
EXPIRE = (
    "CALL millrace.system.expire_snapshots(table => 'millrace.millrace.PageView', retain_last => 20,"
    " older_than => timestamp '2100-01-01 00:00:00')"
)
Ask = Callable[[], Counts]


class Reader(Thread):
    """Asks one engine again and again, and keeps what it answers."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.answers: list[Counts] = []
        self.failure: BaseException | None = None
        self.done = False

    def run(self) -> None:
        try:
            while not self.done:
                self.answers.append(self._ask())
        except BaseException as failure:  # the test reports it
            self.failure = failure

    def finish(self) -> list[Counts]:
        """The answers, after the last one."""
        self.done = True
        self.join(120)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        return self.answers


def newest_metadata(scene: Warehouse) -> str:
    """As a program without pyiceberg asks a SQLite catalog."""
    with closing(sqlite3.connect(scene.folder / "catalog.db", timeout=30)) as connection:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'PageView'"
        (location,) = connection.execute(query).fetchone()
    return str(location)


def counts(rows: list[list[object]]) -> Counts:
    return {str(hour): int(str(number)) for hour, number in rows}


@pytest.fixture
def readers(scene: Warehouse, home: Path, access_log: AccessLog) -> Iterator[dict[str, Ask]]:
    """Engine -> rows by hour, now; all hours of an access log but the last twelve are published."""
    hours = access_log.hours()
    scene.load(hours)
    scene.publish(*sorted(hours)[:-12])
    duckdb, spark = Engine(home, "duckdb"), spark_engine(home, scene)
    of_files = {name: Engine(home, name) for name in ("pyiceberg", "pandas", "polars")}

    def by_duckdb() -> Counts:
        path = newest_metadata(scene).replace("'", "''")
        # Whole hours since 1970: to name them DuckDB would need its extension for time zones.
        rows = duckdb(f"SELECT epoch_ms(_time) // 3600000, count(*) FROM iceberg_scan('{path}') GROUP BY 1")
        return counts([[hour_of(hour), number] for hour, number in rows])

    def by_spark() -> Counts:
        spark("REFRESH TABLE millrace.millrace.PageView")
        return counts(spark(f"SELECT {PER_HOUR}, count(*) FROM millrace.millrace.PageView GROUP BY 1"))

    def of_file(engine: Engine) -> Counts:
        return counts(engine(newest_metadata(scene)))

    files = {name: partial(of_file, engine) for name, engine in of_files.items()}
    yield {"duckdb": by_duckdb, "spark": by_spark, **files}
    for engine in (duckdb, spark, *of_files.values()):
        engine.close()


@pytest.fixture
def others(scene: Warehouse, home: Path, readers: dict[str, Ask]) -> Iterator[Engine]:
    """A second Spark, which maintains the table."""
    engine = spark_engine(home, scene)
    yield engine
    engine.close()


def state_of(scene: Warehouse) -> Counts:
    table = scene.table
    rows: dict[str, int] = {}
    for time in table.scan(selected_fields=("_time",)).to_arrow()["_time"].to_pylist():
        hour = time.strftime("%Y-%m-%dT%H")
        rows[hour] = rows.get(hour, 0) + 1
    return rows


def test_every_answer_of_every_engine_is_one_publication(
    scene: Warehouse, readers: dict[str, Ask], others: Engine, access_log: AccessLog
) -> None:
    hours = sorted(access_log.hours())
    late = hours[::12]
    states = [state_of(scene)]
    assert states[0] == {hour: access_log.hours()[hour] for hour in hours[:-12]}
    assert all(dict(ask()) == states[0] for ask in readers.values())  # each has started
    running = {name: Reader(ask) for name, ask in readers.items()}
    for reader in running.values():
        reader.start()
    turn = 0
    while turn < 12 or any(reader.is_alive() and len(reader.answers) < 8 for reader in running.values()):
        # Rows of many hours at once, so that a reader between two hours would see it.
        load = scene.load(dict.fromkeys(late, turn % 4 + 1))
        scene.publish(*hours[: len(hours) - 11 + turn])
        states.append(state_of(scene))
        if turn % 6 == 3:
            # Rows move from the first hour to the second, in one commit.
            scene.read_again(load, {late[1]: 2 * (turn % 4 + 1)} | dict.fromkeys(late[2:], turn % 4 + 1))
            scene.publish()
            states.append(state_of(scene))
        if turn % 6 in (1, 5):
            before = state_of(scene)
            if turn % 6 == 1:
                others(COMPACT)
                others(EXPIRE)
            else:
                scene.compact()
            assert state_of(scene) == before
        turn += 1
    for name, reader in running.items():
        answers = reader.finish()
        seen = [states.index(answer) for answer in answers]  # ValueError: no publication
        assert seen == sorted(seen), name
    assert all(dict(ask()) == states[-1] for ask in readers.values())
    assert sum(states[-1].values()) > sum(access_log.hours().values())
    assert scene.problems(rows=True) == []
