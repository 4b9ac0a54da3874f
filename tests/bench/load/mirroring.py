"""Gigabytes that wait at an origin, copied to another cluster: Millrace's mirror beside MirrorMaker 2.

The clock runs from the first records at the target to the last, so no start-up is in it; the CPU is given for
that time and for the whole life of the mirroring process. Afterwards every record at the target is counted.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.errors import MillraceError
from millrace.records import split_batches
from millrace.records.mirror_position import Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from tests.bench.broker import meter
from tests.bench.broker.java import KAFKA_OPTIONS
from tests.bench.broker.system import missing_without_jars
from tests.bench.load.accounting import TreeMeter
from tests.bench.load.messages import Filled, Stream, fill
from tests.bench.load.raw import count_records
from tests.bench.load.servers import TOPIC, Broker, Servers
from tests.peers import maven
from tests.peers.connect import POM
from tests.peers.mirrormaker import ONE_BROKER, MirrorMaker

ORIGIN = "origin"
POLL_S = 0.05
NEARLY = 0.999999
"""Written, but not all of it flushed and so shown to consumers."""
START_TIMEOUT_S = 90
COPY_TIMEOUT_S = 240
TASKS = 4
MIRRORMAKER = {
    "clusters": "origin,target",
    "origin->target.enabled": "true",
    "origin->target.topics": TOPIC,
    "tasks.max": str(TASKS),
    **ONE_BROKER,
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "origin.consumer.fetch.max.bytes": str(32 << 20),
    "origin.consumer.max.partition.fetch.bytes": str(8 << 20),
    "origin.consumer.max.poll.records": "10000",
    "origin.consumer.receive.buffer.bytes": str(1 << 20),
    "target.producer.batch.size": str(1 << 20),
    "target.producer.linger.ms": "20",
    "target.producer.buffer.memory": str(256 << 20),
    "target.producer.max.request.size": str(8 << 20),
}
"""A dedicated MirrorMaker for throughput; acks=all and all else as Kafka Connect has it."""


class MirrorFailed(Exception):
    """Not everything arrived; the message says what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One copy of an origin's data."""

    records: int
    data_bytes: int
    seconds: float
    """From the first records to the last."""
    part: float
    """The part of the data that was copied in that time; the rest was there when it was first looked."""
    cpu_s: float
    """CPU of the mirroring process in that time."""
    target_cpu_s: float
    """CPU of the target broker in that time, if the broker is another process."""
    origin_cpu_s: float
    life_cpu_s: float
    """CPU of the mirroring process from its start to the last record."""
    life_s: float
    groups: dict[str, float]
    peak_rss: int


def by_millrace(folder: Path, messages: Stream, *, origin_is_kafka: bool) -> dict[str, Any]:
    """The aggregate broker pulls: it is the mirror."""
    with Servers(folder) as servers:
        zookeeper = servers.zookeeper()
        origin = servers.kafka(ORIGIN) if origin_is_kafka else servers.millrace(ORIGIN, zookeeper)
        filled = fill(origin.address, TOPIC, messages)
        meter.wait_for_quiet([origin.pid])
        settings = f'[mirror.{ORIGIN}]\nbootstrap = "{origin.address}"\ntopics = ["{TOPIC}"]\n'
        target = servers.millrace("aggregate", zookeeper, settings)
        with ClusterClient(origin.address) as source, ClusterClient(target.address) as client:
            topic_id = source.topic(TOPIC).topic_id
            ends = source.list_offsets(TOPIC, LATEST)
            origins = {p: Origin(ORIGIN, TOPIC, topic_id, p) for p in ends}

            def progress() -> float:
                if TOPIC not in client.topics():
                    return 0.0
                done = 0
                for partition, each in origins.items():
                    answer = client.mirror_append(TOPIC, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=each))
                    if answer.position is not None:
                        done += min(answer.position.cursor.next_offset, ends[partition])
                whole = done == sum(ends.values()) and _last_crcs(client) == filled.last_crcs
                return 1.0 if whole else min(done / sum(ends.values()), NEARLY)

            with TreeMeter(target.pid) as tree:
                copied = _watch(progress, filled, tree, [target.pid], [], [origin.pid])
            _check(client, TOPIC, filled)
        return asdict(copied)


def _last_crcs(client: ClusterClient) -> set[int]:
    """Checksums of the last batches that consumers see: what is not flushed yet is none of them."""
    found = set()
    for partition, end in client.list_offsets(TOPIC, LATEST).items():
        records = client.fetch(TOPIC, {partition: end - 1}, max_bytes=1, max_wait_ms=0)[partition].records
        found |= {header.crc for header, _ in split_batches(records) if header.next_offset == end}
    return found


def by_mirrormaker(folder: Path, messages: Stream) -> dict[str, Any]:
    """A dedicated MirrorMaker between two Apache Kafkas."""
    with missing_without_jars():
        maven.class_path(POM)
    with Servers(folder) as servers:
        origin, target = servers.kafka(ORIGIN), servers.kafka("target")
        filled = fill(origin.address, TOPIC, messages)
        meter.wait_for_quiet([origin.pid, target.pid])
        properties = MIRRORMAKER | {
            "origin.bootstrap.servers": origin.address,
            "target.bootstrap.servers": target.address,
        }
        # The heap and collector of Kafka's own script for Connect.
        options = ("-Xms256M", "-Xmx2G", *KAFKA_OPTIONS)
        with MirrorMaker(folder, "target", properties, java_options=options) as mirror:
            try:
                return asdict(_copied_by(mirror.process, origin, target, filled))
            except MirrorFailed as failure:
                words = mirror.log.read_text(errors="replace").strip().splitlines()[-3:]
                raise MirrorFailed(f"{failure}; it said {' / '.join(words)[-600:]}") from None


def _copied_by(process: subprocess.Popen[bytes], origin: Broker, target: Broker, filled: Filled) -> Copied:
    topic = f"{ORIGIN}.{TOPIC}"
    with ClusterClient(target.address) as client, TreeMeter(process.pid) as tree:

        def progress() -> float:
            if process.poll() is not None:
                raise MirrorFailed(f"MirrorMaker ended with exit code {process.returncode}")
            if topic not in client.topics():
                return 0.0
            return sum(client.list_offsets(topic, LATEST).values()) / filled.messages

        copied = _watch(progress, filled, tree, [process.pid], [target.pid], [origin.pid])
        _check(client, topic, filled)
    return copied


def _watch(
    progress: Callable[[], float],
    filled: Filled,
    tree: TreeMeter,
    mirror: list[int],
    target: list[int],
    origin: list[int],
) -> Copied:
    """Wait for the first records, then for the last."""
    began = time.monotonic()
    first = _wait(progress, 1e-9, START_TIMEOUT_S)
    tree.mark()
    started, before = time.monotonic(), [meter.cpu_seconds(pids) for pids in (mirror, target, origin)]
    _wait(progress, 1.0, COPY_TIMEOUT_S)
    seconds, life = time.monotonic() - started, meter.cpu_seconds(mirror)
    used = [meter.cpu_seconds(pids) - cpu for pids, cpu in zip((mirror, target, origin), before, strict=True)]
    measured = tree.used()
    return Copied(
        records=filled.messages,
        data_bytes=filled.data_bytes,
        seconds=seconds,
        part=1 - first,
        cpu_s=used[0],
        target_cpu_s=used[1],
        origin_cpu_s=used[2],
        life_cpu_s=life,
        life_s=time.monotonic() - began,
        groups=dict(measured.groups),
        peak_rss=measured.peak_rss,
    )


def _wait(progress: Callable[[], float], until: float, timeout_s: float) -> float:
    deadline, done = time.monotonic() + timeout_s, 0.0
    while done < until:
        if time.monotonic() > deadline:
            raise MirrorFailed(f"{done:.0%} copied within {timeout_s} s")
        time.sleep(POLL_S)
        try:
            done = progress()
        except MillraceError:  # its leaders are just being chosen
            continue
    return done


def _check(client: ClusterClient, topic: str, filled: Filled) -> None:
    """MirrorFailed unless as many records are there as were produced."""
    if (found := count_records(client, topic)) != filled.messages:
        raise MirrorFailed(f"{found:,} records at the target, {filled.messages:,} were produced")
