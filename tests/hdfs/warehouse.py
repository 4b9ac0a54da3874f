"""A warehouse on HDFS for one test: its loads and hours, and how they compare with the log itself."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import fastavro
from millrace_spark.jobs.hourly import publish
from millrace_spark.jobs.upkeep import verify_warehouse

from millrace_spark import tables
from millrace_spark.jobs.load import reload_loads
from millrace_warehouse.commands.verbs import Hourly, Load, Reload, Verify
from millrace_warehouse.load.hour_files import hour_of
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.reload import ReloadResult
from millrace_warehouse.storage.filesystem import Filesystem, open_filesystem
from tests.brokers import read_topic
from tests.jobs import load_topics
from tests.peers.hdfs import Hdfs
from tests.support import REPOSITORY
from tests.warehouses import TestSite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_431_856_800_000
ENVELOPE_BYTES = 5
Row = tuple[int, int, int]
"""Partition, instance of the producer, sequence: what a message is, wherever it lies."""
_SCHEMA = fastavro.parse_schema(json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))


@dataclass(frozen=True, slots=True)
class HdfsWarehouse:
    """One folder in HDFS, the brokers it is loaded from, and the Spark session that does it."""

    hdfs: Hdfs
    site: TestSite
    spark: SparkSession
    uri: str

    @property
    def fs(self) -> Filesystem:
        """The warehouse as the jobs see it."""
        return open_filesystem(self.uri, self.spark)

    def publish(self, topic: str, count: int, *, apart_ms: int = 4_703, start_ms: int = START_MS) -> None:
        """So many acknowledged events, one every `apart_ms` of event time."""
        assert self.site.publish(topic, [start_ms + n * apart_ms for n in range(count)]) == count

    def settings(self, topic: str, **changes: object) -> Load:
        """Of a load with Spark's writer, in several tasks."""
        settings: dict[str, object] = {
            "topics": [topic],
            "bootstrap": self.site.cluster.bootstrap,
            "registry": self.site.registry,
            "warehouse": self.uri,
            "run_id": uuid4().hex,
            "sink": "spark",
            "cut_bytes": 50_000,
        }
        return Load(**{**settings, **changes})  # type: ignore[arg-type]

    def load(self, topic: str, **changes: object) -> LoadResult:
        """Load what is new, in this process."""
        (result,) = load_topics(self.spark, self.settings(topic, **changes))
        return result

    def hourly(
        self, topic: str, hours: list[str], *, sink: str = "spark"
    ) -> dict[str, tuple[int | None, int]]:
        """Publish hours, in this process: revision and rows of each."""
        settings = Hourly(topic=topic, hours=hours, warehouse=self.uri, run_id=uuid4().hex, sink=sink)
        return {each.hour: (each.revision, each.rows) for each in publish(self.spark, settings)}

    def reload(self, topic: str, load: int, *, sink: str = "spark") -> ReloadResult:
        """Read a load again, in this process."""
        settings = Reload(
            topic=topic,
            bootstrap=self.site.cluster.bootstrap,
            registry=self.site.registry,
            warehouse=self.uri,
            run_id="again",
            reason="a test",
            loads=[load],
            sink=sink,
        )
        (edition,) = reload_loads(self.spark, settings)
        return edition

    def command(self, name: str, topic: str, *options: str) -> list[str]:
        """`millrace load` or `hourly` on this warehouse, as a process of its own."""
        command = [name, topic, "--warehouse", self.uri, "--sink", "spark", "--json", *options]
        if name == "load":
            command += ["--bootstrap", self.site.cluster.bootstrap, "--registry", self.site.registry]
        return command

    def messages(self, topic: str) -> Counter[Row]:
        """Every message in the log."""
        return Counter(row for row, _ in self._messages(topic))

    def hours(self, topic: str) -> Counter[str]:
        """Messages in the log by hour of event time."""
        return Counter(hour_of(time_ms) for _, time_ms in self._messages(topic))

    def _messages(self, topic: str) -> Iterator[tuple[Row, int]]:
        with self.site.cluster.client() as client:
            contents = read_topic(client, topic)
        for partition, each in contents.items():
            for value in each.values:
                assert value is not None
                event: Any = fastavro.schemaless_reader(io.BytesIO(value[ENVELOPE_BYTES:]), _SCHEMA, None)
                header = event["header"]
                time_ms = int(header["time"].timestamp() * 1000)
                yield (partition, header["instance"], header["sequence"]), time_ms

    def rows(self, topic: str) -> Counter[Row]:
        """Every row that Spark finds in the topic's folder, read the plainest way."""
        return _rows(self.spark.read.parquet(f"{self.uri}/{topic}"))

    def check_loads(self, topic: str) -> None:
        """The folder holds every message once, nothing else is in it, and `verify` says so."""
        assert self.rows(topic) == self.messages(topic)
        assert set(self.messages(topic).values()) == {1}
        self._check_proof(topic)

    def check_hours(self, topic: str) -> None:
        """As `check_loads`; and the hourly table holds every message once."""
        assert self.rows(topic) == self.messages(topic)
        self.check_table(topic)

    def check_table(self, topic: str) -> None:
        """The hourly table holds every message once, and `verify` says so, whatever became of the loads."""
        assert _rows(tables.read(self.spark, self.uri, topic)) == self.messages(topic)
        self._check_proof(topic)

    def _check_proof(self, topic: str) -> None:
        reports = verify_warehouse(self.spark, Verify(warehouse=self.uri, topic=topic))
        assert [problem for report in reports for problem in report.problems] == []


def _rows(frame: DataFrame) -> Counter[Row]:
    found = frame.select("_partition", "header.instance", "header.sequence").collect()
    return Counter((row[0], row[1], row[2]) for row in found)


def at_each_step(hook: Callable[[str], None]) -> AbstractContextManager[object]:
    """While inside, loads in this process call `hook` with every step, in their own thread."""
    return patch("millrace_spark.jobs.load.to_stderr", lambda what: hook)
