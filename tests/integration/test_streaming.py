"""Streaming queries on real brokers: restarted, killed, behind, on changing topics; and the example jobs."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from docs.examples.stream_join import events, followed
from docs.examples.windowed_count import page_views, views_per_minute
from millrace.client.cluster_client import LATEST
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster, read_topic
from tests.jobs import kill_at_a_step
from tests.streaming_job import query as parquet_query
from tests.support import REPOSITORY, ROUNDS, WAIT_S, Process, wait_until
from tests.unit.avro.avro_cases import encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Start = Callable[..., Process]
Place = tuple[str, int, int]
"""(topic, partition, offset)"""
MINUTE_MS = 60_000
NOON_MS = 1_431_864_000_000


@pytest.fixture(scope="module")
def cluster(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestCluster:
    folder, name = tmp_path_factory.mktemp("streaming"), f"streaming-{uuid4().hex[:6]}"
    made = TestCluster(start_for_module, name, folder, zookeeper, "[log]\nflush_ms = 20\n")
    return made.start_brokers(1, 2)


def topic_of(cluster: TestCluster, partitions: int, prefix: str = "T") -> str:
    """A new topic."""
    name = f"{prefix}-{uuid4().hex[:6]}"
    with cluster.client() as client:
        client.create_topic(name, partitions)
    return name


def produce(
    cluster: TestCluster,
    topic: str,
    values: Iterable[bytes | None],
    headers: Callable[[int], list[tuple[str, str | bytes | None]]] = lambda _: [],
) -> None:
    """In batches of up to 20 records, acknowledged: everything can be read afterwards."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "batch.num.messages": 20, "acks": "all"}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, headers=headers(number))
    assert producer.flush(WAIT_S) == 0


def stored(cluster: TestCluster, *topics: str) -> list[Place]:
    """Every record of the topics."""
    with cluster.client() as client:
        return sorted(
            (topic, partition, record.offset)
            for topic in topics
            for partition, contents in read_topic(client, topic).items()
            for record in contents.records
        )


def places(frame: DataFrame) -> list[Place]:
    return sorted(tuple(row) for row in frame.select("topic", "partition", "offset").collect())


def stream(spark: SparkSession, cluster: TestCluster, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest", **options}
    return spark.readStream.format("millrace").options(**given).load()


def drain(frame: DataFrame, folder: Path, each: Callable[[DataFrame, int], None]) -> None:
    """Hand every micro-batch to `each` until all that is there now has been read."""
    query = (
        frame.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


@pytest.mark.slow
def test_available_now_goes_on_from_its_checkpoint_and_finds_new_topics(
    spark: SparkSession, cluster: TestCluster, tmp_path: Path
) -> None:
    prefix = f"new{uuid4().hex[:6]}"
    first = topic_of(cluster, 2, prefix)
    produce(cluster, first, [b"%d" % number + b"." * 100 for number in range(300)])
    batches: list[list[Place]] = []
    frame = stream(spark, cluster, subscribePattern=f"{prefix}.*", maxOffsetsPerTrigger="12000")
    drain(frame, tmp_path, lambda batch, _: batches.append(places(batch)))
    assert len(batches) >= 3, "the limit splits what is there"
    assert sorted(itertools.chain(*batches)) == stored(cluster, first)
    second = topic_of(cluster, 1, prefix)
    produce(cluster, second, [b"from its start"])
    produce(cluster, first, [b"more"])
    drain(frame, tmp_path, lambda batch, _: batches.append(places(batch)))
    assert sorted(itertools.chain(*batches)) == stored(cluster, first, second)


def test_a_micro_batch_that_failed_is_read_again_with_the_same_rows(
    spark: SparkSession, cluster: TestCluster, tmp_path: Path
) -> None:
    topic = topic_of(cluster, 3)
    produce(cluster, topic, [b"before"] * 50)
    seen: list[tuple[int, list[Place]]] = []

    def fail(batch: DataFrame, number: int) -> None:
        seen.append((number, places(batch)))
        raise RuntimeError("the sink is down")

    frame = stream(spark, cluster, subscribe=topic)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        drain(frame, tmp_path, fail)
    produce(cluster, topic, [b"after"] * 50)
    drain(frame, tmp_path, lambda batch, number: seen.append((number, places(batch))))
    assert [number for number, _ in seen] == [0, 0, 1]
    assert seen[0] == seen[1]
    assert sorted(seen[1][1] + seen[2][1]) == stored(cluster, topic)


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_every_record_once(
    spark: SparkSession, cluster: TestCluster, start: Start, tmp_path: Path
) -> None:
    topic, dice = topic_of(cluster, 3), random.Random(ROUNDS)
    produce(cluster, topic, [b"%d" % number + b"." * 100 for number in range(2000)])
    for _ in range(ROUNDS):
        job = start(cluster.bootstrap, topic, str(tmp_path), module="tests.streaming_job")
        kill_at_a_step(job, steps=dice.randint(1, 4), pause_s=dice.random() * 0.5)
        produce(cluster, topic, [b"more"] * 20)
    commits = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert commits > 0, job.output
    query = parquet_query(spark, cluster.bootstrap, topic, str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert places(spark.read.parquet(str(tmp_path / "out"))) == stored(cluster, topic)


def test_a_running_query_reads_what_arrives_and_tells_how_far_it_is(
    spark: SparkSession, cluster: TestCluster, tmp_path: Path
) -> None:
    topic = topic_of(cluster, 1)
    produce(cluster, topic, [b"before the query"])
    found: list[bytes] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(bytes(row["value"]) for row in batch.collect())

    query = (
        stream(spark, cluster, subscribe=topic, startingOffsets="latest")
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        offsets = tmp_path / "checkpoint" / "commits" / "0"
        wait_until("the query has begun", offsets.exists)
        produce(cluster, topic, [b"one", b"two"])
        wait_until("both are read", lambda: len(found) == 2)
        assert found == [b"one", b"two"]
        with cluster.client() as client:
            latest = {topic: {str(p): at for p, at in client.list_offsets(topic, LATEST).items()}}

        def told() -> bool:
            progress = query.lastProgress
            source = None if progress is None else progress.sources[0]
            return source is not None and all(
                json.loads(end)["offsets"] == latest for end in (source.endOffset, source.latestOffset)
            )

        wait_until("the progress report says so", told)
    finally:
        query.stop()


def test_a_topic_created_anew_stops_the_query(
    spark: SparkSession, cluster: TestCluster, tmp_path: Path
) -> None:
    topic = topic_of(cluster, 1)
    produce(cluster, topic, [b"old"])
    drain(stream(spark, cluster, subscribe=topic), tmp_path, lambda batch, _: None)
    with cluster.client() as client:
        client.delete_topic(topic)
        wait_until("it is gone", lambda: topic not in client.topics())
        client.create_topic(topic, 1)
    produce(cluster, topic, [b"new", b"new"])
    with pytest.raises(StreamingQueryException, match="was deleted and recreated"):
        drain(stream(spark, cluster, subscribe=topic), tmp_path, lambda batch, _: None)


class Events:
    """PageViews and SearchQueries in topics of those names, and their registry."""

    def __init__(self, cluster: TestCluster, registry: str) -> None:
        self.cluster, self.registry = cluster, registry
        self.schemas: dict[str, tuple[int, Any]] = {}
        with SchemaRegistryClient(registry) as client, cluster.client() as broker:
            for topic in ("PageView", "SearchQuery"):
                schema = json.loads((REPOSITORY / "schemas" / f"{topic}.avsc").read_text())
                self.schemas[topic] = client.register(topic, schema), schema
                broker.create_topic(topic, 2)

    def send(self, topic: str, happened: list[dict[str, Any]]) -> None:
        schema_id, schema = self.schemas[topic]
        blank: dict[str, dict[str, Any]] = {
            "PageView": {
                "clientAddress": "10.0.0.1",
                "method": "GET",
                "protocol": "HTTP/1.1",
                "referrer": None,
                "userAgent": None,
                "status": 200,
                "bytes": None,
                "url": "/",
            },
            "SearchQuery": {"results": 3, "latencyMs": 7},
        }
        values = []
        for number, event in enumerate(happened):
            header = {"server": "s", "service": "www", "instance": 1, "sequence": number, "time": event["ms"]}
            value = {"memberId": None, **blank[topic], **event, "header": header}
            values.append(b"\0" + schema_id.to_bytes(4, "big") + encode(schema, value))
        produce(self.cluster, topic, values)


@pytest.fixture(scope="module")
def registry(start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    database = f"sqlite:///{tmp_path_factory.mktemp('events') / 'registry.db'}"
    started = start_for_module("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    return f"http://{started.ready()}"


NUMBER = {"type": "record", "name": "Number", "fields": [{"name": "value", "type": "long"}]}


def number_in(value_format: str, schema_id: int, number: int) -> bytes:
    """A message with a number."""
    if value_format == "avro":
        return b"\0" + schema_id.to_bytes(4, "big") + encode(NUMBER, {"value": number})
    return b'{"value":%d}' % number if value_format == "json" else b"%d" % number


@pytest.mark.slow
@pytest.mark.parametrize("value_format", ["avro", "json", "text", "bytes"])
def test_a_stream_decodes_each_format_and_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: TestCluster, registry: str, tmp_path: Path, value_format: str
) -> None:
    topic = topic_of(cluster, 2)
    schema_id = 0
    if value_format in ("avro", "json"):
        with SchemaRegistryClient(registry) as client:
            schema_id = client.register(topic, NUMBER)

    def send(first: int) -> None:
        values = [number_in(value_format, schema_id, first + number) for number in range(50)]
        tag = topic_tag(topic)
        produce(
            cluster,
            topic,
            [*values, None],
            lambda number: [(HEADER_NAME, encode_header(tag, 7, first + number, NOON_MS))],
        )

    found: list[tuple[int, int, int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend((int(row.value), row._instance, row._sequence) for row in batch.collect())

    options = {"value.format": value_format} | ({"registry.url": registry} if schema_id else {})
    for first in (0, 100):
        send(first)
        found.clear()
        drain(stream(spark, cluster, subscribe=topic, **options), tmp_path, collect)
        assert sorted(found) == [(number, 7, number) for number in range(first, first + 50)]


@pytest.mark.slow
def test_a_broken_message_stops_a_stream_and_in_permissive_mode_it_goes_on_with_a_row_of_nulls(
    spark: SparkSession, cluster: TestCluster, registry: str, tmp_path: Path
) -> None:
    topic = topic_of(cluster, 1)
    with SchemaRegistryClient(registry) as client:
        client.register(topic, NUMBER)
    found: list[Any] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(batch.orderBy("_offset").collect())

    options = {"subscribe": topic, "registry.url": registry, "value.format": "json"}
    produce(cluster, topic, [b'{"value":1}'])
    drain(stream(spark, cluster, **options), tmp_path, collect)
    produce(cluster, topic, [b'{"value":2}', b'{"value":"three"}', b'{"value":4}'])
    with pytest.raises(StreamingQueryException, match="value: Expected int, got string; set mode=PERMISSIVE"):
        drain(stream(spark, cluster, **options), tmp_path, collect)
    assert [row.value for row in found] == [1]
    drain(stream(spark, cluster, mode="PERMISSIVE", **options), tmp_path, collect)
    assert [row.value for row in found] == [1, 2, None, 4]
    assert bytes(found[2]._corrupt_record) == b'{"value":"three"}'


@pytest.fixture(scope="module")
def happened(cluster: TestCluster, registry: str) -> Events:
    made = Events(cluster, registry)
    made.send("PageView", random.Random(1).sample(VIEWS, len(VIEWS)))
    made.send("SearchQuery", SEARCHES)
    made.send("PageView", [{"ms": LATER_MS, "memberId": 99}])
    made.send("SearchQuery", [{"ms": LATER_MS, "memberId": 98, "query": "later"}])
    return made


VIEWS: list[dict[str, Any]] = [
    {
        "ms": NOON_MS + number * 1000,
        "status": 200 if number % 3 else 404,
        "memberId": number % 2 or None,
        "url": f"/{number}",
    }
    for number in range(180)
]
SEARCHES = [{"ms": NOON_MS + 100_500, "memberId": 1, "query": "maps"}, {"ms": NOON_MS, "query": "a guest's"}]
LATER_MS = NOON_MS + 20 * MINUTE_MS
"""Moves the watermarks past all of them."""


def written(frame: DataFrame, folder: Path) -> DataFrame:
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return frame.sparkSession.read.parquet(str(folder / "out"))


def check_counts(counted: DataFrame) -> None:
    expected = Counter((view["ms"] // MINUTE_MS * MINUTE_MS, view["status"]) for view in VIEWS)
    rows = counted.selectExpr("unix_millis(minute) AS ms", "status", "views").collect()
    assert {(row.ms, row.status): row.views for row in rows} == expected
    assert len(rows) == len(expected), "each minute is written once"


def check_followed(joined: DataFrame) -> None:
    rows = joined.collect()
    assert sorted(row.url for row in rows) == sorted(f"/{number}" for number in range(101, 180, 2))
    assert {(row.member, row.query) for row in rows} == {(1, "maps")}


@pytest.mark.slow
def test_the_example_jobs_count_by_event_time_and_join_two_streams(
    spark: SparkSession, happened: Events, tmp_path: Path
) -> None:
    at = happened.cluster.bootstrap, happened.registry
    check_counts(written(views_per_minute(page_views(spark, *at)), tmp_path / "counts"))
    searches, views = (events(spark, *at, topic) for topic in ("SearchQuery", "PageView"))
    check_followed(written(followed(searches, views), tmp_path / "join"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "result", "check"),
    [("windowed_count", "counts", check_counts), ("stream_join", "followed", check_followed)],
)
def test_the_example_jobs_run_with_spark_submit(
    spark: SparkSession,
    happened: Events,
    tmp_path: Path,
    job: str,
    result: str,
    check: Callable[[DataFrame], None],
) -> None:
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        "--master",
        "local[2]",
        str(REPOSITORY / "docs" / "examples" / f"{job}.py"),
        happened.cluster.bootstrap,
        happened.registry,
        str(tmp_path),
        "--available-now",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check(spark.read.parquet(str(tmp_path / result)))
