"""A power cut takes the whole broker: what was never synced is lost or garbage, names in folders included.

The model is in `faults/disk.py`. What was promised to an acks=all producer, to a mirror or to a consumer must
be there afterwards, whichever of the broker's files the cut met: segments, checkpoints, the claim of the log
directory, the folders of new and deleted topics. ZooKeeper keeps its own disk.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner

from millrace.client.cluster_client import LATEST
from millrace.records import Cursor, Message, build_batch
from millrace.records.mirror_position import Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace_commands.topics import topics as topics_command
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import CONFLUENT
from tests.integration.faults.disk import Disk
from tests.integration.faults.ledger import Ledger, read_all
from tests.integration.faults.traffic import (
    HASTY,
    LZ4,
    PLAIN,
    NumberedProducer,
    Reader,
    run,
    run_until_stored,
)
from tests.support import ROUNDS, Process, run_millrace
from tests.unit.storage.logs import append, batch, batches_at, crowded_batch, flush, forget_readers, open_log

pytestmark = pytest.mark.soak

PARTITIONS = 4
CRASH_POINTS = 12 if ROUNDS > 2 else 2
"""Number of a start's or a repair's syncs that are made its last; every sync in `make soak`."""


@dataclass
class BatchMirror:
    """Fills a mirrored partition as a batch job does, from an origin that it makes up as it goes."""

    broker: RunningBroker
    topic: str
    origin: Origin = field(default_factory=lambda: Origin("dc1", "copied", UUID(int=7), 0))
    recorded: int = 0
    """The origin offset up to which the broker said that everything is on the disk."""

    def step(self) -> None:
        """Append two batches where the last ones ended, and note what the broker says."""
        with self.broker.client() as client:
            ask = functools.partial(MirrorAppend, origin=self.origin)
            position = client.mirror_append(self.topic, ask(mode=MirrorMode.DESCRIBE)).position
            expected = None if position is None else position.cursor.next_offset
            start = expected or 0
            records = b"".join(self._batch(base) for base in (start, start + 3))
            asked = ask(mode=MirrorMode.APPEND, expected=expected, cursor=Cursor(start + 6), records=records)
            answer = client.mirror_append(self.topic, asked)
            assert answer.position is not None
            self.recorded = answer.position.cursor.next_offset

    @staticmethod
    def _batch(base: int) -> bytes:
        made = bytearray(build_batch([Message(1000, None, b"origin %d" % (base + n)) for n in range(3)]))
        made[:8] = base.to_bytes(8, "big")
        return bytes(made)

    def check(self, where: str) -> None:
        """Exactly the origin's messages up to the recorded position, which is no less than what was told."""
        with self.broker.client() as client:
            asked = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=self.origin)
            position = client.mirror_append(self.topic, asked).position
            assert position is not None, f"{where}: the mirror's position is gone"
            assert position.cursor.next_offset >= self.recorded, f"{where}: the mirror went back"
            end = client.list_offsets(self.topic, LATEST, [0])[0]
            found = list(read_all(client, self.topic, 0, end).values())
            assert found == [b"origin %d" % n for n in range(position.cursor.next_offset)], where


class ShortLivedTopics:
    """Topics that are made and deleted while power fails: those that are left hold their one message."""

    def __init__(self, broker: RunningBroker, chance: random.Random) -> None:
        self._broker, self._chance = broker, chance
        self._number, self._left = 0, ["recreated"]
        self._begin("recreated")

    def _begin(self, topic: str) -> None:
        self._broker.create_topic(topic)
        CONFLUENT.produce(self._broker.bootstrap, topic, 0, [topic.encode()], "none")

    def step(self) -> None:
        """Make one, delete some, and make one anew under its old name."""
        self._number += 1
        self._begin(f"short-{self._number}")
        self._left.append(f"short-{self._number}")
        with self._broker.client() as client:
            for topic in self._chance.sample(self._left, len(self._left) // 2):
                client.delete_topic(topic)
                if topic == "recreated":
                    self._begin(topic)
                else:
                    self._left.remove(topic)

    def check(self, where: str) -> None:
        """Every topic that is left has its message, once; no other has come back."""
        with self._broker.client() as client:
            assert {name for name in client.topics() if name in self._left or name[:5] == "short"} == set(
                self._left
            ), where
            for topic in self._left:
                end = client.list_offsets(topic, LATEST, [0])[0]
                assert list(read_all(client, topic, 0, end).values()) == [topic.encode()], where


def watched_broker(
    start: Callable[..., Process], zookeeper: str, folder: Path, disk: Disk, cluster: str
) -> RunningBroker:
    """A broker on the disk, its checkpoints frequent enough for a cut to meet them."""
    watched = functools.partial(start, env={**disk.env, "DISK_PACE": "0.2"})
    return start_broker(watched, zookeeper, folder, cluster)


def die_while_it_starts(broker: RunningBroker, start: Callable[..., Process], disk: Disk, sync: int) -> None:
    """Start the broker, end it instead of its sync number `sync`, and cut the power."""
    env = {**disk.env, "DISK_DIE_AT": str(sync)}
    process = start("broker", str(broker.config), "--set", f"listen={broker.bootstrap}", env=env)
    try:
        process.ready()
        process.kill()
    except AssertionError:
        assert process.wait() == 9, process.output
    disk.cut_power()


def test_every_promise_survives_power_cuts_of_the_whole_broker(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    name = f"power-{uuid4().hex[:6]}"
    disk = Disk(tmp_path / "disk", tmp_path / f"{name}-1", chance)
    broker = watched_broker(start, zookeeper, tmp_path, disk, name)
    # Flushed rarely, so that there is always something to lose.
    ledgers = [
        Ledger(broker.create_topic("synced", PARTITIONS, segment_bytes=30_000)),
        Ledger(broker.create_topic("lazy", PARTITIONS, segment_bytes=30_000, flush_ms=400)),
    ]
    certain = [NumberedProducer(broker.bootstrap, ledgers[0], kind, PARTITIONS) for kind in (PLAIN, LZ4)]
    # Its oldest segments go all the time: a cut brings some of them back.
    short = broker.create_topic("expiring", PARTITIONS, segment_bytes=2000, retention_bytes=6000)
    expiring = Ledger(short, expires=True)
    certain.append(NumberedProducer(broker.bootstrap, expiring, PLAIN, PARTITIONS))
    hasty = NumberedProducer(broker.bootstrap, ledgers[1], HASTY, PARTITIONS)
    mirror, topics = BatchMirror(broker, "mirrored"), ShortLivedTopics(broker, chance)
    readers = [Reader(broker.bootstrap, ledger, PARTITIONS) for ledger in ledgers]
    with readers[0], readers[1]:
        number = 0
        # A cut may meet nothing that was not flushed; the next ones will.
        while number < ROUNDS or (disk.lost_bytes == 0 and number < 10 * ROUNDS):
            number += 1
            where = f"seed {seed}, round {number}"
            run_until_stored([*certain, hasty], 40)
            topics.step()
            for _ in range(chance.randint(1, 8)):
                mirror.step()
                run([*certain, hasty], chance.uniform(0, 0.15))
            broker.process.kill()
            if chance.random() < 0.3:
                broker.restart()  # a kill alone loses nothing, and what it leaves is shown at once
                run([*certain, hasty], chance.uniform(0, 0.2))
                broker.process.kill()
            disk.cut_power()
            if chance.random() < 0.5:
                die_while_it_starts(broker, start, disk, chance.randint(1, 12))
            broker.restart()
            with broker.client() as client:
                for ledger in (*ledgers, expiring):
                    ledger.check(client, range(PARTITIONS), where)
            mirror.check(where)
            topics.check(where)
            for reader in readers:
                assert not reader.problems, f"{where}: {reader.problems[0]}"
        for producer in [*certain, hasty]:
            producer.finish()
        with broker.client() as client:
            for ledger, reader in zip(ledgers, readers, strict=True):
                found = ledger.check(client, range(PARTITIONS), f"seed {seed}, at the end")
                for partition in range(PARTITIONS):
                    for producer in certain[:2] if ledger is ledgers[0] else [hasty]:
                        producer.check(partition, found[partition])
                    reader.wait_for(partition, found[partition])
            found = expiring.check(client, range(PARTITIONS), f"seed {seed}, at the end")
            assert min(found[0]) > 0, "retention took nothing: the test shows nothing about it"
    assert disk.lost_bytes > 0, "no bytes were ever at risk: the test shows nothing"


@pytest.mark.long
def test_a_broker_that_loses_power_at_any_sync_of_its_first_start_starts_the_next_time(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    name = f"first-{uuid4().hex[:6]}"
    root = tmp_path / f"{name}-1"
    disk = Disk(tmp_path / "disk", root, random.Random(1))
    broker = watched_broker(start, zookeeper, tmp_path, disk, name)
    broker.create_topic("there", PARTITIONS)
    broker.process.stop()
    points = random.sample(range(1, 13), CRASH_POINTS)
    for point in points:
        # The topic is there and this broker leads it, but its disk is new: all is made again.
        shutil.rmtree(root)
        root.mkdir()
        disk.begin_anew()
        die_while_it_starts(broker, start, disk, point)
    broker.restart()
    for partition in range(PARTITIONS):  # an operator says that no other copy exists
        elect = ["elect", "--unclean", f"there-{partition}", "--replica", "1", "--reason", "a new disk"]
        done = CliRunner().invoke(topics_command, [*elect, "--bootstrap", broker.bootstrap])
        assert done.exit_code == 0, done.output
    CONFLUENT.produce(broker.bootstrap, "there", 0, [b"kept"], "none")
    broker.process.kill()
    disk.cut_power()
    broker.restart()
    with broker.client() as client:
        end = client.list_offsets("there", LATEST, [0])[0]
        assert list(read_all(client, "there", 0, end).values()) == [b"kept"]


def damaged_log(directory: Path) -> set[int]:
    """A log of several segments with damage below the checkpoint; the base offsets that are intact."""
    log = open_log(directory, segment_bytes=4000)
    for number in range(30):
        made = crowded_batch(300) if number == 8 else batch(3, b"v" * 40 + b"%d" % number)
        append(log, made)
    flush(log)
    log.close()
    log = open_log(directory, segment_bytes=4000)
    headers = [header for offset in range(0, log.high_watermark, 50) for header in batches_at(log, offset, 1)]
    bases = sorted({header.base_offset for header in headers if not header.is_control})
    log.close()
    # Some neighbours, whose replacement is longer than any batch, one alone, and the last.
    damaged = [*bases[3:7], bases[12], bases[-1]]
    for base in damaged:
        path = max(path for path in directory.glob("*.log") if int(path.stem) <= base)
        with path.open("r+b") as file:
            file.seek(base - int(path.stem) + 10)
            file.write(b"\xff\xff\xff")
    return set(bases) - set(damaged)


def test_a_repair_that_loses_power_at_any_sync_is_finished_by_the_next_one(tmp_path: Path) -> None:
    original = tmp_path / "original"
    intact = damaged_log(original)
    points = random.sample(range(1, 13), CRASH_POINTS)
    for point in points:
        root = tmp_path / f"cut-{point}" / "log_dir"
        partition = root / f"t-0-{UUID(int=1).hex}"
        shutil.copytree(original, partition)
        disk = Disk(root.parent / "disk", root, random.Random(point))
        ended = run_millrace("log", "repair", str(root), env={**disk.env, "DISK_DIE_AT": str(point)})
        assert ended.returncode in (0, 9), ended.stderr
        disk.cut_power()
        again = run_millrace("log", "repair", str(root))
        assert again.returncode == 0, again.stderr
        assert run_millrace("log", "verify", str(root)).returncode == 0
        log = open_log(partition, segment_bytes=4000)
        seen: set[int] = set()
        for offset in range(log.high_watermark):
            forget_readers(log)
            seen.update(header.base_offset for header in batches_at(log, offset, 1) if not header.is_control)
        assert intact <= seen, f"cut at sync {point}"
        log.close()
