"""Reading topics of real brokers: cuts of every size, and the `millrace` data source in a Spark session."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.log.messages import frames_of
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges, join_stats
from millrace_warehouse.log.reading import read_cut
from tests.brokers import TestCluster
from tests.support import REPOSITORY, WAIT_S, Process
from tests.unit.avro.avro_cases import encode
from tests.unit.avro.fuzz_cases import BLOCKS, COLUMNS, INNER
from tests.unit.avro.fuzz_cases import value as some_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

Start = Callable[..., Process]
PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {
            "name": "placedAt",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis", "millrace.json": "iso"}],
        },
        {
            "name": "lines",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {"type": "record", "name": "Line", "fields": [{"name": "qty", "type": "int"}]},
                },
            ],
        },
    ],
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class World:
    """Two brokers and a registry."""

    cluster: TestCluster
    registry: str

    @property
    def bootstrap(self) -> str:
        """Addresses on which the brokers listen."""
        return self.cluster.bootstrap

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        with ClusterClient(self.bootstrap) as client:
            client.create_topic(name, partitions)


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, name = tmp_path_factory.mktemp("source"), f"source-{uuid4().hex[:6]}"
    database = f"sqlite:///{folder / 'registry.db'}"
    registry = start_for_module("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    cluster = TestCluster(start_for_module, name, folder, zookeeper, "[log]\nflush_ms = 20\n")
    cluster.start_brokers(1, 2)
    return World(cluster, f"http://{registry.ready()}")


def produce(
    world: World,
    topic: str,
    values: Sequence[bytes | None],
    codec: str = "none",
    *,
    first: int = 0,
    **more: Any,
) -> None:
    """Produce with acks=all, a millisecond apart from the `first` one on: all can be read afterwards."""
    producer = Producer(
        {
            "bootstrap.servers": world.bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": 100,
        }
    )
    failed: list[Any] = []
    for number, value in enumerate(values, first):
        producer.produce(
            topic,
            value,
            timestamp=1431857103000 + number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
            **more,
        )
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def page_view(number: int) -> dict[str, Any]:
    header = {"server": "web-1", "service": "www", "instance": 7, "sequence": number}
    return {
        "header": {"time": 1431857103000 + number, **header},
        "memberId": number if number % 2 else None,
        "clientAddress": "10.0.0.1",
        "method": "GET",
        "url": f"/é/{number}",
        "protocol": "HTTP/1.1",
        "referrer": None,
        "userAgent": "curl",
        "status": 200,
        "bytes": number,
    }


def message(schema_id: int, schema: Any, event: dict[str, Any]) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + encode(schema, event)


def test_cuts_of_every_size_give_each_record_of_a_real_topic_exactly_once(world: World) -> None:
    world.topic("cuts", 2)
    sent = [[b"%s %d" % (codec.encode(), number) for number in range(400)] for codec in CODECS]
    for codec, values in zip(CODECS, sent, strict=True):
        for partition in (0, 1):
            produce(world, "cuts", values, codec, partition=partition)
    with ClusterClient(world.bootstrap) as client:
        topic_id = client.topic("cuts").topic_id
        ends = client.list_offsets("cuts", LATEST)
        for partition, (cut_bytes, fetch_bytes) in itertools.product(
            (0, 1), [(997, 1), (3000, 4000), (20_000, 1 << 20), (1 << 40, 5000)]
        ):
            range_ = Range("cuts", partition, 0, ends[partition], 0, topic_id)
            values, parts = [], []
            for cut in cut_ranges([range_], cut_bytes):
                stats = RangeStats.for_cut(cut)
                fetched = read_cut(client, cut, stats, fetch_bytes=fetch_bytes, timeout_s=10)
                for frames, rejected in frames_of(cut, fetched, stats):
                    assert rejected == []
                    data = frames.buffer.data
                    values += [
                        bytes(data[start : start + size])
                        for start, size in zip(frames.value.tolist(), frames.value_size.tolist(), strict=True)
                    ]
                parts.append(stats)
            assert values == [value for each in sent for value in each]
            joined = join_stats(range_, parts)
            assert joined.cursor is not None
            end = joined.cursor.next_offset
            assert (joined.gaps, joined.records, end) == ([], len(values), ends[partition])


@pytest.fixture(scope="module")
def views(world: World) -> str:
    """A topic of 3,000 PageViews of two schema versions in three partitions."""
    world.topic("PageView", 3)
    newer = {
        **PAGE_VIEW,
        "fields": [*PAGE_VIEW["fields"], {"name": "latencyMs", "type": ["null", "int"], "default": None}],
    }
    with SchemaRegistryClient(world.registry) as registry:
        first, second = registry.register("PageView", PAGE_VIEW), registry.register("PageView", newer)
    old = [message(first, PAGE_VIEW, page_view(number)) for number in range(2000)]
    new = [message(second, newer, {**page_view(n), "latencyMs": n}) for n in range(2000, 3000)]
    produce(world, "PageView", old, "zstd")
    produce(world, "PageView", new, "lz4", first=2000, key=b"k")
    return "PageView"


def reader(spark: SparkSession, world: World, topic: str, **options: str) -> DataFrameReader:
    given = {
        "bootstrap": world.bootstrap,
        "subscribe": topic,
        **{k.replace("_", "."): v for k, v in options.items()},
    }
    return spark.read.format("millrace").options(**given)


@pytest.mark.slow
def test_typed_columns_of_both_schema_versions(spark: SparkSession, world: World, views: str) -> None:
    frame = reader(spark, world, views, registry_url=world.registry, minPartitions="7").load()
    assert frame.schema["header"].dataType.simpleString() == (
        "struct<time:timestamp,server:string,service:string,instance:bigint,sequence:bigint>"
    )
    more = frame.selectExpr("*", "spark_partition_id() as task", "unix_millis(header.time) as ms")
    rows = sorted(more.collect(), key=lambda row: row.header.sequence)
    assert len({row.task for row in rows}) >= 7
    assert [row.ms for row in rows] == [1431857103000 + number for number in range(3000)]
    assert [row.header.sequence for row in rows] == list(range(3000))
    assert [row.url for row in rows] == [f"/é/{number}" for number in range(3000)]
    assert [row.memberId for row in rows[:4]] == [None, 1, None, 3]
    assert [row.latencyMs for row in rows[1998:2002]] == [None, None, 2000, 2001]
    assert [bytes(row._key) if row._key else None for row in rows[1999:2001]] == [None, b"k"]
    assert len({row._schema_id for row in rows}) == 2


def test_every_avro_type_reaches_spark_and_its_parquet_files(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    fields = {**COLUMNS, **{name: type_ for name, type_ in BLOCKS.items() if name not in COLUMNS}}
    fields = {
        name: "Inner" if type_ is INNER and name != "inner" else type_ for name, type_ in fields.items()
    }
    fields["parts"] = {"type": "array", "items": "Inner"}
    fields["kinds"] = {"type": "map", "values": "Kind"}
    schema = {
        "type": "record",
        "name": "Every",
        "fields": [{"name": n, "type": t} for n, t in fields.items()],
    }
    dice = random.Random(3)
    sent = [some_value(dice) for _ in range(50)]
    world.topic("every", 1)
    with SchemaRegistryClient(world.registry) as registry:
        schema_id = registry.register("every", schema)
    produce(world, "every", [message(schema_id, schema, value) for value in sent])
    frame = reader(spark, world, "every", registry_url=world.registry).load()
    frame.write.parquet(str(tmp_path / "every"))
    rows = spark.read.parquet(str(tmp_path / "every")).orderBy("_offset").collect()
    assert [row.text for row in rows] == [value["text"] for value in sent]
    assert [row.price for row in rows] == [value["price"] for value in sent]
    assert [row.day for row in rows] == [value["day"] for value in sent]
    assert [(bytes(row.id), bytes(row.span)) for row in rows] == [(v["id"], v["span"]) for v in sent]
    assert [row.tags for row in rows] == [value["tags"] for value in sent]
    assert [row.counts for row in rows] == [value["counts"] for value in sent]
    assert [[part.n for part in row.parts] for row in rows] == [[p["n"] for p in v["parts"]] for v in sent]
    assert [row.micros for row in rows] == [
        v["micros"].hour * 3600_000_000 + v["micros"].minute * 60_000_000 for v in sent
    ]


def test_raw_columns_offsets_and_a_frozen_end(spark: SparkSession, world: World) -> None:
    world.topic("raw", 1)
    headers = [("trace", b"1"), ("empty", None)]
    produce(world, "raw", [b"first", b"second"], headers=headers, key=b"key")
    frame = reader(spark, world, "raw").load()
    assert frame.columns == ["key", "value", "headers", "topic", "partition", "offset", "timestamp"]
    produce(world, "raw", [b"too late for the frame"])
    rows = frame.orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"first", b"second"]
    assert frame.count() == 2
    assert [(header.key, header.value) for header in rows[0].headers] == [("trace", b"1"), ("empty", None)]
    assert (bytes(rows[0].key), rows[0].topic, rows[0].partition, rows[0].offset) == (b"key", "raw", 0, 0)
    second = rows[1].offset

    def values(frame: DataFrame) -> list[bytes]:
        return [bytes(row.value) for row in frame.orderBy("offset").collect()]

    ending = reader(spark, world, "raw", endingOffsets=json.dumps({"raw": {"0": second}})).load()
    assert values(ending) == [b"first"]
    starting = json.dumps({"raw": {"0": second}})
    assert values(reader(spark, world, "raw", startingOffsets=starting).load())[0] == b"second"
    nothing = reader(spark, world, "raw", startingOffsets=starting, endingOffsets=starting).load()
    assert values(nothing) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"no prefix", "does not begin with a zero byte and a schema id"),
        (b"\0\0\0\x7f\xff" + b"x", "schema id 32767 is not in the registry"),
        (b"\0PageView\xff", "reaches past the end"),
    ],
)
def test_a_message_that_cannot_be_decoded_fails_the_query_by_its_offset(
    spark: SparkSession, world: World, views: str, value: bytes, reason: str
) -> None:
    with SchemaRegistryClient(world.registry) as registry:
        schema_id = registry.lookup(views, PAGE_VIEW)
        assert schema_id is not None
    value = value.replace(b"PageView", schema_id.schema_id.to_bytes(4, "big"))
    topic = f"bad-{uuid4().hex[:6]}"
    world.topic(topic, 1)
    produce(world, topic, [value])
    frame = reader(spark, world, topic, registry_url=world.registry, registry_subject=views).load()
    with pytest.raises(PySparkException, match=rf"{topic}-0 offset 0: .*{reason}"):
        frame.collect()


def test_in_permissive_mode_what_cannot_be_decoded_is_a_row_of_nulls_with_its_bytes(
    spark: SparkSession, world: World, views: str
) -> None:
    world.topic("mixed", 1)
    with SchemaRegistryClient(world.registry) as registry:
        schema_id = registry.lookup(views, PAGE_VIEW)
        assert schema_id is not None
    good = message(schema_id.schema_id, PAGE_VIEW, page_view(1))
    produce(world, "mixed", [good, b"no prefix", None, b"\0\xff\xff\xff\xff", good], key=b"k")
    options = {"registry_subject": views, "mode": "PERMISSIVE"}
    frame = reader(spark, world, "mixed", registry_url=world.registry, **options).load()
    assert frame.columns[-2:] == ["_corrupt_record", "_corrupt_reason"]
    first, bad, unknown, last = frame.orderBy("_offset").collect()
    assert (first.url, last.url, first._corrupt_record, last._corrupt_reason) == ("/é/1", "/é/1", None, None)
    assert (bad.url, bad.header, bytes(bad._corrupt_record)) == (None, None, b"no prefix")
    reason = "the message does not begin with a zero byte and a schema id: it looks like plain text"
    assert (bytes(bad._key), bad._corrupt_reason) == (b"k", reason)
    assert (unknown._schema_id, unknown._corrupt_reason) == (
        -1,
        "schema id 4294967295 is not in the registry",
    )


def test_a_tombstone_is_no_row_and_fails_no_query(spark: SparkSession, world: World, views: str) -> None:
    world.topic("deleted", 1)
    with SchemaRegistryClient(world.registry) as registry:
        schema_id = registry.lookup(views, PAGE_VIEW)
        assert schema_id is not None
    produce(world, "deleted", [message(schema_id.schema_id, PAGE_VIEW, page_view(1)), None])
    options = {"registry_url": world.registry, "registry_subject": views}
    assert [row.url for row in reader(spark, world, "deleted", **options).load().collect()] == ["/é/1"]
    assert [row.value for row in reader(spark, world, "deleted").load().collect()][1] is None


@pytest.fixture(scope="module")
def orders(world: World) -> str:
    """A topic of JSON with a schema: good orders, one with an audit header, broken ones and a tombstone."""
    world.topic("orders", 1)
    with SchemaRegistryClient(world.registry) as registry:
        registry.register("orders", ORDER)
    value = b'{"id":1,"customer":"\xc3\xa9","placedAt":"2015-05-17T08:25:03Z","lines":[{"qty":2}],"more":7}'
    header = encode_header(topic_tag("orders"), 7, 41, 1431857103000)
    other_topics = encode_header(topic_tag("PageView"), 7, 42, 1431857103000)
    produce(world, "orders", [value], key=b"k", headers=[("trace", b"x"), (HEADER_NAME, header)])
    produce(world, "orders", [b'{"id":2}'], "zstd", headers=[(HEADER_NAME, other_topics)])
    produce(world, "orders", [b"\0\0\0\0\x09" + b'{"id":3}', None])
    produce(world, "orders", [b'{"id":4,"lines":[{"qty":"two"}]}', b"{"], key=b"bad")
    produce(world, "orders", [b'{"id":5}'])
    return "orders"


def test_json_becomes_the_columns_of_a_schema_and_of_the_record_header(
    spark: SparkSession, world: World, orders: str
) -> None:
    options = {"registry_url": world.registry, "value_format": "json", "mode": "PERMISSIVE"}
    frame = reader(spark, world, orders, **options).load()
    assert frame.columns == [
        *("id", "customer", "placedAt", "lines"),
        *("_topic_partition", "_offset", "_timestamp", "_key", "_schema_id", "_instance", "_sequence"),
        *("_corrupt_record", "_corrupt_reason"),
    ]
    found = frame.selectExpr("*", "unix_millis(placedAt) AS placed").orderBy("_offset").collect()
    assert [row.id for row in found] == [1, 2, 3, None, None, 5], "and no row of the tombstone"
    first = found[0]
    assert (first.customer, first.placed, first.lines[0].qty) == ("é", 1431851103000, 2)
    assert [(row._instance, row._sequence) for row in found] == [(7, 41), *[(None, None)] * 5]
    assert [row._schema_id for row in found] == [None, None, 9, None, None, None]
    keys = [row._key and bytes(row._key) for row in found]
    assert keys == [b"k", None, None, b"bad", b"bad", None]
    reasons = [row._corrupt_reason for row in found]
    assert reasons[3:5] == ["lines[0].qty: Expected int, got string", "Input data was truncated"]
    assert [reason is None for reason in reasons] == [True, True, True, False, False, True]
    assert bytes(found[4]._corrupt_record) == b"{"


def test_a_json_message_that_does_not_fit_fails_the_query_by_its_offset(
    spark: SparkSession, world: World, orders: str
) -> None:
    frame = reader(spark, world, orders, registry_url=world.registry, value_format="json").load()
    reason = r"orders-0 offset \d+: lines\[0\]\.qty: Expected int, got string; set mode=PERMISSIVE"
    with pytest.raises(PySparkException, match=reason):
        frame.collect()


def test_text_and_bytes_need_no_registry_and_have_the_record_header(
    spark: SparkSession, world: World
) -> None:
    world.topic("lines", 1)
    headers = [(HEADER_NAME, encode_header(topic_tag("lines"), 7, 0, 1431857103000)), ("empty", None)]
    produce(world, "lines", ["é".encode()], key=b"k", headers=headers)
    produce(world, "lines", [None, b"\xff", b""])
    frame = reader(spark, world, "lines", value_format="bytes").load()
    first, second, third = frame.orderBy("_offset").collect()
    assert [bytes(row.value) for row in (first, second, third)] == ["é".encode(), b"\xff", b""]
    assert [header.key for header in first.headers] == [HEADER_NAME, "empty"]
    assert (first.headers[1].value, second.headers) == (None, [])
    assert (bytes(first._key), first._schema_id, first._instance, first._sequence) == (b"k", None, 7, 0)
    text = reader(spark, world, "lines", value_format="text")
    with pytest.raises(PySparkException, match=r"lines-0 offset \d+: value: .*UTF-8.*; set mode=PERMISSIVE"):
        text.load().collect()
    rows = text.option("mode", "PERMISSIVE").load().orderBy("_offset").collect()
    assert [row.value for row in rows] == ["é", None, ""]
    assert bytes(rows[1]._corrupt_record) == b"\xff"


def test_avro_with_a_record_header_has_its_sender_beside_the_header_in_the_value(
    spark: SparkSession, world: World, views: str
) -> None:
    world.topic("sent", 1)
    with SchemaRegistryClient(world.registry) as registry:
        schema_id = registry.lookup(views, PAGE_VIEW)
        assert schema_id is not None
    value = message(schema_id.schema_id, PAGE_VIEW, page_view(1))
    header = encode_header(topic_tag("sent"), 9, 5, 1431857103000)
    produce(world, "sent", [value], headers=[(HEADER_NAME, header)])
    produce(world, "sent", [value])
    options = {"registry_url": world.registry, "registry_subject": views}
    rows = reader(spark, world, "sent", **options).load().orderBy("_offset").collect()
    assert [(row.header.sequence, row._instance, row._sequence) for row in rows] == [
        (1, 9, 5),
        (1, None, None),
    ]


def test_a_topic_of_json_that_is_read_as_avro_is_told_the_option(
    spark: SparkSession, world: World, orders: str
) -> None:
    frame = reader(spark, world, orders, registry_url=world.registry).load()
    advice = (
        r'it looks like JSON; give \.option\("value\.format", "json"\) to read JSON objects, or set mode='
    )
    with pytest.raises(PySparkException, match=rf"orders-0 offset \d+: .*{advice}"):
        frame.collect()
    world.topic("clicks", 1)
    produce(world, "clicks", [b'{"x":1}', b'{"x":2}'])
    needs = reader(spark, world, "clicks", registry_url=world.registry)
    advice = r'clicks look like JSON objects, and .* expects Avro: give \.option\("value\.format", "json"\)'
    with pytest.raises(PySparkException, match=advice):
        needs.load()
    with pytest.raises(
        PySparkException, match=r"no schema .*'clicks' .*: draft it with `millrace init schema"
    ):
        needs.option("value.format", "json").load()


def test_a_schema_that_json_cannot_fill_is_refused_when_the_frame_is_made(
    spark: SparkSession, world: World, views: str
) -> None:
    with pytest.raises(PySparkException, match=r"PageView cannot be read as json .* is an audit header"):
        reader(spark, world, views, registry_url=world.registry, value_format="json").load()


def test_columns_follow_the_schema_that_is_named(spark: SparkSession, world: World, views: str) -> None:
    with SchemaRegistryClient(world.registry) as registry:
        old = registry.lookup(views, PAGE_VIEW)
    assert old is not None
    frame = reader(
        spark, world, views, registry_url=world.registry, registry_schema_id=str(old.schema_id)
    ).load()
    assert "latencyMs" not in frame.columns
    assert frame.count() == 3000, "messages of the newer schema too"


def test_a_batch_may_begin_and_end_at_a_time(spark: SparkSession, world: World, views: str) -> None:
    at = {
        "startingTimestamp": str(1431857103000 + 500),
        "endingTimestamp": str(1431857103000 + 1500),
        "startingOffsetsByTimestampStrategy": "latest",  # by chance a partition may have early events only
    }
    frame = reader(spark, world, views, registry_url=world.registry, **at).load()
    sequences = {row.sequence for row in frame.select("header.sequence").collect()}
    assert sequences == set(range(500, 1500))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "no-such-topic"}, "topic .no-such-topic. does not exist"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"endingOffsets": '{"raw": {"0": 999999999}}'}, "before endingOffsets"),
    ],
)
def test_wrong_options_are_refused_when_the_frame_is_made(
    spark: SparkSession, world: World, options: dict[str, str], reason: str
) -> None:
    with ClusterClient(world.bootstrap) as client:
        if "raw" not in client.topics():
            client.create_topic("raw", 1)
    with pytest.raises(PySparkException, match=reason):
        reader(spark, world, "raw").options(**options).load()
