"""PageView messages by the million, produced fast: every one different, in whole batches made beforehand.

Some batches are encoded once, as templates; each repetition is the same requests to other web servers'
processes: a template with other instance numbers. So (instance, sequence) is unique, times rise along the log
and are spread evenly over HOURS hours, and a batch costs a copy, its compression and its checksum.
"""

from __future__ import annotations

import io
import itertools
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import fastavro
from crc32c import crc32c

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.records import HEADER_BYTES, Message, build_batch
from millrace.records.compression import Codec, compress
from millrace.records.header import CRC_START, LENGTH_OVERHEAD
from tests.bench.page_views import PAGE_VIEW, Visitors
from tests.bench.replay import produce_request
from tests.support import wait_until

HOURS = 8
FIRST_MS = int(datetime(2015, 5, 17, 8, tzinfo=UTC).timestamp() * 1000)
HOSTS = 8
BATCH_RECORDS = 500
DISTINCT = 250_000
PARTITIONS = 8
IN_FLIGHT = 16
ANSWER_S = 60
_INSTANCE_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`repetitions` of some templates, all for one schema id, as records of `codec`."""

    templates: Sequence[bytes]
    """Uncompressed batches; the n-th is host n % HOSTS's."""
    instances: Sequence[Sequence[int]]
    """Per repetition, per host; the templates hold those of the first repetition."""
    codec: Codec

    @property
    def repetitions(self) -> int:
        """Number of times that every template is sent."""
        return len(self.instances)

    @property
    def messages(self) -> int:
        """All of them."""
        return len(self.templates) * BATCH_RECORDS * self.repetitions

    def batches(self) -> Iterator[bytes]:
        """Every batch, in the order of event times."""
        for number, template in enumerate(self.templates):
            first = instance_bytes(self.instances[0][number % HOSTS])
            for instances in self.instances:
                yield _packed(template.replace(first, instance_bytes(instances[number % HOSTS])), self.codec)

    def rows_by_hour(self) -> Mapping[str, int]:
        """Messages of each hour, `2015-05-17T08`."""
        found: Counter[str] = Counter()
        for index in range(len(self.templates) * BATCH_RECORDS):
            time_ms = time_of(index, len(self.templates))
            found[f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H}"] += self.repetitions
        return found


def stream(messages: int, schema_id: int, codec: Codec) -> Stream:
    """That many messages, or as many more as make whole repetitions."""
    distinct = min(DISTINCT, messages)
    templates = distinct // BATCH_RECORDS
    repetitions = -(-messages // (templates * BATCH_RECORDS))
    dice = random.Random(7)
    # Of ten bytes each, so that one can take another's place.
    instances = [[dice.randrange(1 << 62, 1 << 63) for _ in range(HOSTS)] for _ in range(repetitions)]
    return Stream(
        templates=list(_templates(templates, schema_id, instances[0], dice)), instances=instances, codec=codec
    )


def time_of(index: int, templates: int) -> int:
    """Event time of a template's record, counted through all templates."""
    return FIRST_MS + index * HOURS * 3_600_000 // (templates * BATCH_RECORDS)


def instance_bytes(instance: int) -> bytes:
    """An instance number as Avro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", instance)
    assert len(out.getvalue()) == _INSTANCE_BYTES
    return out.getvalue()


def _templates(count: int, schema_id: int, instances: Sequence[int], dice: random.Random) -> Iterator[bytes]:
    visitors, schema = Visitors(dice), fastavro.parse_schema(PAGE_VIEW)
    prefix, sequences = b"\0" + schema_id.to_bytes(4, "big"), [0] * HOSTS
    for number in range(count):
        host, messages = number % HOSTS, []
        for index in range(number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS):
            event, out = visitors.event(index, dice), io.BytesIO()
            event["header"] = {
                "time": time_of(index, count),
                "server": f"web-{host}.dc1.example.com",
                "service": "www",
                "instance": instances[host],
                "sequence": sequences[host],
            }
            sequences[host] += 1
            out.write(prefix)
            fastavro.schemaless_writer(out, schema, event)
            messages.append(Message(event["header"]["time"], None, out.getvalue()))
        yield build_batch(messages)


def _packed(batch: bytes, codec: Codec) -> bytes:
    """The batch with its records compressed, and the length and checksum that go with them."""
    records = compress(codec, batch[HEADER_BYTES:])
    attributes = struct.unpack_from(">h", batch, CRC_START)[0] | codec
    checked = struct.pack(">h", attributes) + batch[CRC_START + 2 : HEADER_BYTES] + records
    length = struct.pack(">i", HEADER_BYTES - LENGTH_OVERHEAD + len(records))
    return batch[:8] + length + batch[12:17] + struct.pack(">I", crc32c(checked)) + checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Contents of a topic after filling."""

    messages: int
    batches: int
    data_bytes: int
    """Whole batches, as stored."""
    last_crcs: frozenset[int]
    """Checksums of every partition's last batch, by which a copy of it is known."""


def fill(address: str, topic: str, messages: Stream) -> Filled:
    """Create the topic with PARTITIONS partitions and produce the stream; returns when all is readable."""
    batches = data_bytes = 0
    ends: dict[int, int] = {}
    last: dict[int, bytes] = {}
    with ClusterClient(address) as client:
        # Apache Kafka goes by the events' own times, and these lie years back.
        client.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
        client.list_offsets(topic, LATEST)  # answered once every partition has its leader
        with _Producing(address, topic) as producing:
            one_by_one = messages.batches()
            while some := dict(enumerate(itertools.islice(one_by_one, PARTITIONS))):
                producing.send(some)
                last |= some
                batches, data_bytes = batches + len(some), data_bytes + sum(map(len, some.values()))
            ends = producing.finish()

        def readable() -> bool:
            latest = client.list_offsets(topic, LATEST)
            return all(latest[partition] >= end for partition, end in ends.items())

        wait_until(f"the end of {topic} is readable", readable)
    crcs = frozenset(int.from_bytes(batch[CRC_START - 4 : CRC_START], "big") for batch in last.values())
    return Filled(messages=messages.messages, batches=batches, data_bytes=data_bytes, last_crcs=crcs)


class _Producing:
    """One connection with some requests on their way; every answer is looked at."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        self._answers = self._connection.makefile("rb")
        self._topic = topic
        self._waiting = 0
        self._ends: dict[int, int] = {}

    def __enter__(self) -> _Producing:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._connection.close()

    def send(self, batches: dict[int, bytes]) -> None:
        """One request with a batch for each partition."""
        self._connection.sendall(produce_request(self._topic, batches, 1))
        self._waiting += 1
        if self._waiting == IN_FLIGHT:
            self._take()

    def finish(self) -> dict[int, int]:
        """Wait for all answers; the offset behind the last record of every partition."""
        while self._waiting:
            self._take()
        return self._ends

    def _take(self) -> None:
        (size,) = struct.unpack(">i", self._answers.read(4))
        answer = self._answers.read(size)
        position = 4 + 4 + 2 + len(self._topic)
        (count,) = struct.unpack_from(">i", answer, position)
        for partition, error, base, _, _ in struct.iter_unpack(
            ">ihqqq", answer[position + 4 : position + 4 + count * 30]
        ):
            if error:
                raise ConnectionError(f"{self._topic}-{partition}: the broker answers with error {error}")
            self._ends[partition] = base + BATCH_RECORDS
        self._waiting -= 1
