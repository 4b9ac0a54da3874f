"""The auditor's reading of mirrored audit topics: whose partition it is, what waits, what is gone."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from millrace.client.cluster_client import EARLIEST, FetchedPartition, TopicMetadata
from millrace.errors import MillraceError
from millrace.records import BatchHeader, Cursor, Message, build_batch
from millrace.records.compression import Codec
from millrace.records.control import control_batch
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.fetch import Parting
from millrace_audit.auditor import auditor as auditor_module
from millrace_audit.auditor.auditor import Auditor
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.ledger import Entry, Place
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import AuditPosition, AuditStore, TierRow
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE, AuditCodec, Heartbeat, ReaderPosition
from millrace_audit.reports.seals import is_signed, sign, signed_turn
from millrace_broker.storage.epochs import EpochMap
from tests.unit.audit.story import COUNTED, NOW, OPTIONS, OWN, SAID, TOPIC, Story, W, found
from tests.unit.audit.test_messages import Ids

LATER = NOW + 20 * WINDOW_MS
SECRET = b"the readers'"


class Book:
    """The turns of all tiers: number 1 and 2, one secret."""

    def signed(self, tier: str, key: bytes | None, value: bytes, fetch: object) -> int | None:
        turn = signed_turn(key)
        return turn if key is not None and turn in (1, 2) and is_signed(key, SECRET, value) else None


class Registry:
    """Mirrors as the aggregate cluster's ZooKeeper and leaders report them."""

    def __init__(self, cluster: Cluster) -> None:
        self.origin, self.position = cluster.origin, cluster.newest_position
        self.in_kafka = False


class Partition:
    """One partition's log, its beginning expired on demand."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[bytes] = []
        self.epochs, self.epoch = EpochMap(), 0

    def append(self, batch: bytes) -> int:
        """The batch at the end of the log, and the offset behind it."""
        placed = bytearray(batch)
        placed[0:8], placed[12:16] = self.end.to_bytes(8, "big"), self.epoch.to_bytes(4, "big")
        self.epochs.note(self.epoch, self.end)
        header = BatchHeader.parse(bytes(placed))
        assert header is not None
        self.batches.append(bytes(placed))
        self.end = max(header.next_offset, self.end + 1)
        return self.end

    def expire(self) -> None:
        self.batches.clear()
        self.start = self.end

    def put_back(self, batches: int) -> None:
        """Its first batches alone, as an older copy has them; what follows is of another epoch."""
        self.end = int.from_bytes(self.batches[batches][:8], "big")
        del self.batches[batches:]
        self.epochs.cut(self.end)
        self.epoch += 1


class Cluster:
    """The aggregate cluster as a client sees it: `audit` and `audit-counts` are mirrors of two origins."""

    def __init__(self) -> None:
        self.codec = AuditCodec(Ids())
        self.logs: dict[str, dict[int, Partition]] = {
            SAID: {0: Partition(), 1: Partition()},
            COUNTED: {0: Partition(), 1: Partition()},
            OWN: {0: Partition()},
        }
        self.taken: dict[tuple[str, str], int] = {}
        self.newest: dict[tuple[str, str], int] = {}
        self.origin_partition = 0
        self.through: int | None = None
        """End of the log that the newest positions account for; None: the end of the whole log."""

    def publish(self, story: Story, *, positions: bool = True) -> None:
        """Append the story's new records, as its writers and mirrors would."""
        for (topic, tier), there in story.partitions.items():
            log = self.logs[topic][0 if tier == "offline" else int(tier[-1]) - 1]
            begin = self.taken.get((topic, tier), 0)
            for heard in there[begin:]:
                assert heard.record is not None
                value = self.codec.encode(heard.record)
                key = None if heard.turn is None else sign(heard.turn, SECRET, value)
                log.append(build_batch([Message(0, key, value)]))
            self.taken[topic, tier] = len(there)
            if positions and tier != "offline" and len(there) > begin:
                self.position(topic, tier, there[-1].at)

    def position(self, topic: str, tier: str, at: int, *, reset: bool = False) -> None:
        origin = Origin(tier, topic, UUID(int=9), 0)
        log = self.logs[topic][int(tier[-1]) - 1]
        moved = log.end if reset else 0
        position = MirrorPosition(origin, 0, Cursor(at, at), 1, self.taken[topic, tier], 0, moved)
        log.append(control_batch(log.end, position.encode(log.end), timestamp=0))

    def origin(self, topic: str, topic_id: str, partition: int) -> Origin | None:
        return Origin(f"dc{partition + 1}", topic, UUID(int=9), self.origin_partition)

    def newest_position(
        self, topic: str, topic_id: str, partition: int, origin: Origin, read: int
    ) -> tuple[MirrorPosition | None, int]:
        """Return the newest position and the end it accounts for, as a leader would."""
        at = self.newest.get((topic, origin.cluster))
        records = self.taken.get((topic, origin.cluster), 0)
        position = None if at is None else MirrorPosition(origin, 0, Cursor(at, at), 1, records, 0)
        end = self.logs[topic][int(origin.cluster[-1]) - 1].end
        return position, end if self.through is None else self.through

    def topics(self, names: Any = None) -> dict[str, TopicMetadata]:
        return {
            name: TopicMetadata(name, UUID(int=number), dict.fromkeys(logs, 1))
            for number, (name, logs) in enumerate(self.logs.items(), 7)
        }

    def list_offsets(self, topic: str, timestamp: int) -> dict[int, int]:
        return {p: log.start if timestamp == EARLIEST else log.end for p, log in self.logs[topic].items()}

    def fetch(
        self, topic: str, offsets: Mapping[int, int], *, last_epochs: Mapping[int, int], **_: int
    ) -> dict[int, FetchedPartition]:
        fetched = {}
        for p, offset in offsets.items():
            log, epoch = self.logs[topic][p], last_epochs[p]
            answer = FetchedPartition(0, log.end, log.end, log.start, memoryview(b"".join(log.batches)))
            if parting := log.epochs.parting(epoch, offset, log.end):
                answer = replace(answer, records=memoryview(b""), parting=Parting(*parting))
            fetched[p] = answer
        return fetched


@pytest.fixture
def story() -> Iterator[Story]:
    store = AuditStore("sqlite://")
    yield Story(store)
    store.close()


def auditor(story: Story, cluster: Cluster) -> Auditor:
    made = Auditor(story.store, story.options, "127.0.0.1:1", "http://nobody", "127.0.0.1:1")
    made._client, made._codec, made._book = cluster, cluster.codec, Book()  # type: ignore[assignment]
    made._mirrors = Registry(cluster)  # type: ignore[assignment]
    return made


def test_a_mirrored_audit_is_whole_and_read_once(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    reading = auditor(story, cluster)
    assert reading.apply_all()
    assert story.verdict() == "complete", story.window()
    assert not reading.apply_all()
    assert not auditor(story, cluster).apply_all(), "another process goes on where the database stands"


def test_reports_wait_until_it_is_known_what_they_lie_before(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story, positions=False)
    auditor(story, cluster).apply_all()
    assert story.window()["acknowledged"] == 0
    cluster.newest[SAID, "dc1"] = story.said_end()  # its leader tells what no reader can see yet
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"


def test_a_killed_auditor_reads_again_what_waited(story: Story) -> None:
    cluster = Cluster()
    story.hello()
    cluster.publish(story)
    story.report(0, (0, 9))
    cluster.publish(story, positions=False)
    auditor(story, cluster).apply_all()
    story.carry(found((0, 9)))
    story.beats()
    cluster.publish(story)
    cluster.position(SAID, "dc1", story.said_end())
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete", story.window()


def test_a_report_lies_before_what_the_position_batch_behind_it_says(story: Story) -> None:
    """The reader of dc1 has read its audit topic up to a report; the mirror's next batch reaches further."""
    cluster = Cluster()
    story.hello()
    story.report(0, (0, 9), closed=W + WINDOW_MS)
    story.carry(found((0, 9)))
    story.beats()
    end = story.said_end()
    for _ in range(3):
        story.hello(5, time=NOW)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "pending", "its place is known as at most the position"
    assert end < story.said_end()
    story.beats(NOW + 6000)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert "dc1 is counted" not in " ".join(story.window()["reasons"])


def test_only_the_first_partition_of_an_origins_topic_is_anybodys_word(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    cluster.origin_partition = 3
    auditor(story, cluster).apply_all()
    assert {cause for _, cause in story.rejected_records()} == {"no audit record that belongs here"}


def test_counts_that_are_signed_with_another_secret_have_no_effect(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    story.whole()
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SECRET", b"guessed")
        cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.window()["tiers"]["offline"] == 0
    assert {cause for _, cause in story.rejected_records()} == {"no reader of the tier has signed it"}


def test_a_topic_that_is_no_mirror_is_the_aggregate_clusters_own(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story, positions=False)
    cluster.origin = lambda *_: None  # type: ignore[method-assign]
    auditor(story, cluster).apply_all()
    assert {cause for _, cause in story.rejected_records()} == {
        "it says cluster dc1 and speaks in that of offline",
        "no audit record that belongs here",
    }


def test_an_auditor_that_begins_behind_expired_records_calls_nothing_before_complete(story: Story) -> None:
    cluster = Cluster()
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.whole()
    cluster.publish(story)
    for logs in cluster.logs.values():
        for log in logs.values():
            log.expire()
    story.hello(2, "dc2", time=NOW)
    story.report(0, instance=2, cluster="dc2", time=NOW)
    story.hello(3, time=NOW)
    story.report(0, instance=3, time=NOW)
    counted = ReaderPosition(TOPIC, f"dc1-{TOPIC}", 0, story.ends["dc1", "dc1", 0])
    story.beat("dc1", LATER - 6 * WINDOW_MS, positions=[counted])
    story.beats(LATER - 5 * WINDOW_MS)
    story.beats(LATER)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    window = story.window()
    assert window["verdict"] == "unknown", "what instance 1 sent then has never been heard of"
    assert "audit records were lost before the auditor read them" in " ".join(window["reasons"])
    assert story.verdict(LATER - 3 * WINDOW_MS) == "complete"


def test_an_auditor_that_was_away_too_long_keeps_what_it_knew_and_doubts_the_time_between(
    story: Story,
) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    reading = auditor(story, cluster)
    reading.apply_all()
    assert story.verdict() == "complete"
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.hello(2, time=NOW)
    story.report(0, (0, 9), instance=2, window=NOW, time=NOW)
    cluster.publish(story)
    cluster.logs[SAID][0].expire()
    story.hello(3, time=NOW + WINDOW_MS)
    story.report(0, instance=3, time=NOW + WINDOW_MS)
    story.beats(NOW + 2 * WINDOW_MS)
    story.beats(LATER)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"
    assert story.verdict(NOW) == "unknown"
    assert story.verdict(NOW + 4 * WINDOW_MS) == "complete"


@pytest.mark.parametrize("lost", [False, True])
def test_an_audit_topic_in_which_nothing_was_said_until_all_of_it_expired_has_no_gap(
    story: Story, lost: bool
) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story, positions=False)
    cluster.newest[SAID, "dc1"] = story.said_end()
    auditor(story, cluster).apply_all()
    if lost:
        story.hello(9, time=NOW)
        cluster.publish(story, positions=False)
    for log in cluster.logs[SAID].values():
        log.append(build_batch([Message(0, None, b"a position that nobody sees")]))
        log.expire()
    auditor(story, cluster).apply_all()
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.beats(LATER)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"
    assert story.verdict(NOW + 2 * WINDOW_MS) == ("unknown" if lost else "complete")


BOMB = build_batch([Message(0, None, bytes(80 << 20))], codec=Codec.GZIP)
BROKEN = build_batch([Message(0, None, b"says it is compressed")], attributes=Codec.GZIP)


@pytest.mark.parametrize("batch", [BROKEN, BOMB], ids=["broken", "bomb"])
def test_a_batch_that_nobody_can_take_apart_stops_no_auditor(story: Story, batch: bytes) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    cluster.logs[SAID][0].append(batch)
    cluster.publish(story)
    cluster.position(SAID, "dc1", story.said_end())
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"
    assert story.rejected_records() == [("message", "no audit record that belongs here")]


ZEROS = build_batch([Message(0, None, bytes(8 << 20))], codec=Codec.ZSTD)
"""8 MiB in 400 bytes."""


def test_what_strangers_pack_into_kilobytes_takes_no_gigabytes_of_an_auditor(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    assert len(ZEROS) < 1000
    report = cluster.codec.encode(story.partitions[SAID, "dc1"][-1].record)  # type: ignore[arg-type]
    large = build_batch([Message(0, None, report + os.urandom(1 << 20))], codec=Codec.ZSTD)
    for batch in (*[ZEROS] * 300, large):
        cluster.logs[SAID][0].append(batch)
    cluster.position(SAID, "dc1", story.said_end())
    reading = auditor(story, cluster)
    tracemalloc.start()
    try:
        reading.apply_all()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100 << 20
    assert story.verdict() == "complete"
    assert {cause for _, cause in story.rejected_records()} == {
        "no audit record that belongs here",
        "it cannot be read",
    }


def test_more_than_a_part_is_applied_in_its_order(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "PART_BYTES", 1)
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete", story.window()


def test_an_auditor_that_is_killed_between_two_parts_goes_on_behind_the_first(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor_module, "PART_BYTES", 1)
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    taken: list[Any] = []
    apply = ledger.apply

    def killed_at_the_second(
        session: Session, place: Place, heard: Sequence[Entry], *rest: Any, **how: Any
    ) -> None:
        if place.topic == SAID and taken:
            raise MillraceError("killed")
        taken.extend(one.record for one in heard)
        apply(session, place, heard, *rest, **how)

    monkeypatch.setattr(ledger, "apply", killed_at_the_second)
    with pytest.raises(MillraceError):
        auditor(story, cluster).apply_all()
    with story.store.reading() as session:
        position = session.get_one(AuditPosition, (UUID(int=7).hex, 0))
        assert (len(taken), position.next_offset) == (1, 1)
        assert session.get(TierRow, "dc1") is None, "the report lies before the same offset"
    monkeypatch.setattr(ledger, "apply", apply)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete", story.window()
    assert story.rejected_records() == []


def test_what_producers_said_is_heard_also_behind_what_no_consumer_sees(story: Story) -> None:
    """Apache Kafka's marks of transactions: they move a mirror's position, and bring it no message."""
    cluster = Cluster()
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 9)))
    for time in (NOW - 6000, NOW):
        story.beat("dc1", time, through=story.said_end() + 1)
        story.beat("dc2", time)
        story.beat("offline", time)
    cluster.publish(story)
    reading = auditor(story, cluster)
    reading.apply_all()
    assert story.verdict() == "pending", story.window()
    cluster.newest[SAID, "dc1"] = story.said_end() + 1
    for each in reading._readings.values():
        each.ask_at = 0
    reading.apply_all()
    story.settle()
    assert story.verdict() == "complete", story.window()


def test_of_what_was_read_that_is_heard_whose_place_at_the_origin_is_known(story: Story) -> None:
    """MirrorMaker 2 says it of some messages only, which may lie in the middle of what is there."""
    cluster = Cluster()
    story.hello()
    cluster.newest[SAID, "dc1"] = story.said_end()
    story.report(0, (0, 9))
    story.carry(found((0, 9)))
    for time in (NOW - 6000, NOW):
        story.beats(time)
    cluster.publish(story, positions=False)
    cluster.through = 1
    reading = auditor(story, cluster)
    reading.apply_all()
    assert story.verdict() == "unknown", "what producers have said is still read"
    cluster.newest[SAID, "dc1"], cluster.through = story.said_end(), None
    for each in reading._readings.values():
        each.ask_at = 0
    reading.apply_all()
    story.settle()
    assert story.verdict() == "complete", story.window()


@pytest.mark.parametrize("lost", [False, True])
def test_where_an_origin_has_lost_what_producers_said_nobody_is_called_unreported(
    story: Story, lost: bool
) -> None:
    cluster = Cluster()
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.whole()
    cluster.publish(story)
    story.carry(found((0, 9), instance=2, window=NOW))
    end = story.said_end()
    if lost:
        cluster.position(SAID, "dc1", end + 50, reset=True)
    story.hello(3, time=NOW + WINDOW_MS)
    story.report(0, instance=3, time=NOW + WINDOW_MS)
    story.beats(NOW + 2 * WINDOW_MS)
    story.beats(LATER)
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"
    assert story.verdict(NOW) == ("unknown" if lost else "carried"), story.window(NOW)
    assert story.verdict(NOW + 4 * WINDOW_MS) == "complete"


class Apart(Book):
    """Turn 2 is the warehouse's, turn 1 is everybody else's."""

    def signed(self, tier: str, key: bytes | None, value: bytes, fetch: object) -> int | None:
        turn = super().signed(tier, key, value, fetch)
        return turn if (turn == 2) == (tier == WAREHOUSE) else None


def test_the_warehouses_heartbeat_is_taken_of_its_own_reader_alone(story: Story) -> None:
    cluster = Cluster()
    for time, tier, turn in ((NOW, WAREHOUSE, 2), (NOW + 1, WAREHOUSE, 1), (NOW + 2, OFFLINE, 2)):
        story.say(OWN, OFFLINE, Heartbeat(time=time, tier=tier, number=time), turn)
    cluster.publish(story)
    reading = auditor(story, cluster)
    reading._book = Apart()  # type: ignore[assignment]
    reading.apply_all()
    with story.store.reading() as session:
        assert answers.heartbeats(session) == {WAREHOUSE: NOW}
    assert story.rejected_records() == 2 * [("Heartbeat", "no reader of the tier has signed it")]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("topic", [SAID, COUNTED, OWN])
def test_an_audit_topic_that_was_put_back_from_an_older_copy_makes_hours_unknown_and_none_incomplete(
    story: Story, topic: str, is_restarted: bool
) -> None:
    cluster = Cluster()
    story.whole()
    cluster.publish(story)
    reading = auditor(story, cluster)
    reading.apply_all()
    assert story.verdict() == "complete"
    log, tier = cluster.logs[topic][0], OFFLINE if topic == OWN else "dc1"
    old_end = log.end
    log.put_back(1)
    cluster.taken[topic, tier] = 1
    if topic != OWN:  # what the mirror copies again lies elsewhere: it appends in other portions
        cluster.position(topic, tier, 100)
    else:  # nobody has what its readers wrote: they go on
        cluster.taken[topic, tier] = len(story.partitions[topic, tier])
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.hello(2, time=NOW)
    story.report(0, (0, 9), instance=2, window=NOW, time=NOW)
    counted = found((0, 9), instance=2, window=NOW)
    story.count("dc1", counted)
    story.count(OFFLINE, counted)
    story.beats(NOW + 2 * WINDOW_MS)
    story.beats(LATER)
    cluster.publish(story)
    assert log.end > old_end, "it has grown past its old end"
    if is_restarted:
        reading = auditor(story, cluster)
    reading._options = reading._judging._options = story.options
    reading._settle_due = 0
    reading.apply_all()
    reading._settle_due = 0
    reading.apply_all()
    assert story.verdict() in ("complete", "unknown")
    assert story.verdict(NOW) in ("complete", "unknown"), story.window(NOW)
    assert "audit records were lost" in " ".join(story.window(NOW)["reasons"])
    assert story.verdict(NOW + 4 * WINDOW_MS) == "complete"
