"""A warehouse that is no local folder, for one test: loads, its published table, and how both compare.

The rows of the table are read by pyiceberg through the storage; what must be in it is read from the
log itself. The catalog is the one that pyiceberg's configuration names `remote`.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import fastavro
import pytest
from pyiceberg.utils.config import Config

from millrace_spark.jobs.load import reload_loads
from millrace_warehouse.commands import execute
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.reload import ReloadResult
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.expire import ExpireResult
from millrace_warehouse.requests import Compact, Expire, Load, Publish, Reload, Verify
from millrace_warehouse.storage import Storage, open_storage
from millrace_warehouse.verify.check import TopicReport
from tests.brokers import read_topic
from tests.jobs import load_topics
from tests.peers.hdfs import Hdfs
from tests.support import REPOSITORY
from tests.warehouses import TestSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "remote"
START_MS = 1_431_856_800_000
ENVELOPE_BYTES = 5
Row = tuple[int, int, int]
"""Partition, instance of the producer, sequence: what a message is, wherever it lies."""
_SCHEMA = fastavro.parse_schema(json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))


def use_catalog(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]) -> None:
    """Describe the catalog to pyiceberg, in this process and in those that it starts."""
    for name, value in properties.items():
        variable = name.replace(".", "__").replace("-", "_").upper()
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{variable}", value)
    # It has read the environment when it was imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def nothing(_: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class RemoteWarehouse:
    """One warehouse, the brokers it is loaded from, and the Spark session that does it."""

    site: TestSite
    spark: SparkSession
    uri: str

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.uri)

    def produce(self, topic: str, count: int, *, apart_ms: int = 4_703, start_ms: int = START_MS) -> None:
        """Produce `count` acknowledged events, one every `apart_ms` of event time."""
        assert self.site.publish(topic, [start_ms + n * apart_ms for n in range(count)]) == count

    def load(self, topic: str, **changes: object) -> LoadResult:
        """Load what is new in several tasks, from this process."""
        settings: dict[str, object] = {
            "topics": [topic],
            "bootstrap": self.site.cluster.bootstrap,
            "registry": self.site.registry,
            "warehouse": self.uri,
            "run_id": uuid4().hex,
            "cut_bytes": 50_000,
        }
        (result,) = load_topics(self.spark, Load(**{**settings, **changes}))  # type: ignore[arg-type]
        return result

    def command(self, name: str, topic: str, *options: str) -> list[str]:
        """`millrace load` or `publish` on this warehouse, for a process of its own."""
        command = [name, topic, "--warehouse", self.uri, "--json", *options]
        if name == "load":
            return [*command, "--bootstrap", self.site.cluster.bootstrap, "--registry", self.site.registry]
        return [*command, "--catalog", CATALOG]

    def publish(self, topic: str, **changes: object) -> dict[str, Any]:
        """Publish every hour that has rows, unasked."""
        settings: dict[str, object] = {
            "topics": [topic],
            "warehouse": self.uri,
            "hours": sorted(self.hours(topic)),
            "unasked": True,
            "catalog": CATALOG,
            "run_id": uuid4().hex,
        }
        request = Publish(**{**settings, **changes})  # type: ignore[arg-type]
        return execute.publish_one(request, topic, nothing)

    def reload(self, topic: str, load: int) -> ReloadResult:
        """Read a load again."""
        request = Reload(
            topic=topic,
            bootstrap=self.site.cluster.bootstrap,
            registry=self.site.registry,
            warehouse=self.uri,
            run_id="again",
            reason="a test",
            loads=[load],
        )
        (edition,) = reload_loads(self.spark.sparkContext, request).loads
        return edition

    def compact(self, topic: str) -> dict[str, Any]:
        """Put small files together."""
        return execute.compact_one(
            Compact(topics=[topic], warehouse=self.uri, catalog=CATALOG), topic, nothing
        )

    def expire(self, topic: str) -> ExpireResult:
        """Delete what nobody needs, however young."""
        request = Expire(topic=topic, warehouse=self.uri, older_than_s=0, reader_grace_s=0, catalog=CATALOG)
        return execute.expire(request, nothing)

    def verify(self, topic: str) -> TopicReport:
        """Verify a topic, reading every row; return the report."""
        request = Verify(warehouse=self.uri, topic=topic, rows=True, catalog=CATALOG)
        (report,) = execute.verify(request, nothing)
        return report

    def messages(self, topic: str) -> Counter[Row]:
        """Every message in the log."""
        return Counter(row for row, _ in self._messages(topic))

    def hours(self, topic: str) -> Counter[str]:
        """Messages in the log by hour of event time."""
        times = (datetime.fromtimestamp(time_ms / 1000, UTC) for _, time_ms in self._messages(topic))
        return Counter(time.strftime("%Y-%m-%dT%H") for time in times)

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
        """Every row of the table."""
        with connect(self.storage, CATALOG) as catalog:
            table = catalog.load_table(table_identifier(topic))
            rows = table.scan(selected_fields=("_topic_partition", "header")).to_arrow().to_pylist()
        return Counter(
            (row["_topic_partition"], row["header"]["instance"], row["header"]["sequence"]) for row in rows
        )

    def check_loads(self, topic: str) -> TopicReport:
        """The loads hold every message once, and `verify` says so."""
        report = self.verify(topic)
        assert report.problems == []
        assert set(self.messages(topic).values()) == {1}
        assert report.rows == len(self.messages(topic))
        return report

    def check_table(self, topic: str) -> None:
        """The loads and the table hold every message once, and `verify` says so."""
        report = self.check_loads(topic)
        assert self.rows(topic) == self.messages(topic)
        assert report.published == len(self.messages(topic))


def at_each_step(hook: Callable[[str], None]) -> AbstractContextManager[object]:
    """While inside, loads in this process call `hook` with every step, in their own thread."""
    return patch("millrace_warehouse.commands.load_context.to_stderr", lambda what: hook)


@pytest.fixture
def warehouse_on_hdfs(
    hdfs: Hdfs, site: TestSite, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RemoteWarehouse]:
    """A warehouse of the test's own; afterwards everything runs again that the test has killed."""
    use_catalog(monkeypatch, {"uri": f"sqlite:///{tmp_path}/catalog.db"})
    yield RemoteWarehouse(site, spark, f"{hdfs.uri}/warehouses/{uuid4().hex[:8]}")
    hdfs.start()
