"""The auditing reader: counts every message of one cluster and publishes the counts.

The readers of one cluster share its partitions. A reader reads raw batches up to the high watermark, and only
the audit header of each message. For each partition it publishes the range of offsets that it read, with the
sequences found there. A heartbeat states that every message visible in the cluster at its time is counted,
except in the partitions that it names. One reader publishes the heartbeats, for all. A reader keeps no state
of its own: the counts topic holds the offsets at which to continue, so the reader may be killed at any
moment. Memory is bounded by the size of one fetch and by a size after which a count is published early.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from millrace.client.cluster_client import LATEST, ClusterClient, TopicMetadata
from millrace.client.fetcher import log_was_cut
from millrace.client.runs import OffsetRules
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError, TopicAlreadyExists
from millrace.records import Cursor
from millrace.records.topic_partition import TopicPartition
from millrace.topics_file import TopicPolicies
from millrace.wire.fetch import FetchedPartition, Parting
from millrace.zookeeper.session import Session
from millrace_audit.reader import coverage
from millrace_audit.reader.brokers import Brokers
from millrace_audit.reader.counting import BatchCounter
from millrace_audit.reader.numbers import ReaderNumbers
from millrace_audit.reader.partition import LEFT_OUT, CannotRead, Partition, PartitionKey
from millrace_audit.reader.rounds import IDLE_HEARTBEAT_S, RETRY_S, TierReader
from millrace_audit.reader.sharing import Membership, joined
from millrace_audit.reports.event import has_header
from millrace_audit.reports.fingerprints import Fingerprint, fingerprint, fingerprint_of, strong_fingerprint
from millrace_audit.reports.messages import (
    AUDIT_TOPIC,
    COUNTS_TOPIC,
    NOTHING,
    OFFLINE,
    AuditCodec,
    Count,
    Heartbeat,
    ReaderPosition,
    Truncated,
    Unreadable,
    now_ms,
)
from millrace_audit.reports.mirrors import Mirrors, NotInZooKeeper, cluster_name
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS, AuditPublisher
from millrace_audit.reports.turn_taker import Holder, TurnTaker
from millrace_audit.reports.turns import Seat, Turn, TurnBook, read_turns
from millrace_registry.client import SchemaRegistryClient, UnknownSchema

logger = logging.getLogger("millrace.audit.reader")

COUNT_BYTES = 1 << 20
"""Size of a partition's counts above which they are published before the round is over."""
_PARTITIONS_PER_FETCH = 200
GONE_S = 10.0
"""Time after which a counted partition that no listing has named counts as deleted."""
GIVE_UP_S = 30.0
"""Time for which a reader's rounds may fail before it leaves its share to the other readers of the tier."""
_FIRST_AWAY_S, _LONGEST_AWAY_S = 10.0, 60.0
_ASK_AGAIN_S = 20.0
"""Interval of requests for a mirror's position, which may move even without a message."""
_CLUSTER_S = 10.0
_AUDIT_TOPICS = {AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE_AUDIT_TOPIC}
_CLIENT_ID = "millrace-audit-reader"
_SHARING = 1
"""Version of the rules by which readers share a tier: readers with different rules do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """One auditing reader."""

    cluster: str
    tier: str
    """The cluster's tier: its own name, or `offline` for the aggregate cluster."""
    bootstrap: str
    registry: str = field(repr=False)
    """URL of the schema registry."""
    zookeeper: str
    """Address of the aggregate cluster's ZooKeeper, which keeps the turns of all readers."""
    new_cluster: bool = False
    """True if the reader may count another cluster than the tier's last reader did."""
    topics: Sequence[str] = ()
    """Topics to count; empty: all but the audit topics."""
    policies: TopicPolicies = field(default_factory=dict)
    interval_ms: int = 1000
    """Interval of looking for new messages and publishing; also the delay that it adds to a verdict."""

    @property
    def counts_topic(self) -> str:
        return OFFLINE_AUDIT_TOPIC if self.tier == OFFLINE else COUNTS_TOPIC


@dataclass(frozen=True, slots=True)
class _Claim:
    """Content of a heartbeat. It waits until the transactions that were open at its time have ended."""

    time: int
    reported_through: int
    written: dict[PartitionKey, int]
    """End offsets of the messages acknowledged by then."""

    def holds_for(self, partitions: Mapping[PartitionKey, Partition]) -> bool:
        """Return True if all these messages could be read, except in partitions that the heartbeat names as
        unreadable.
        """
        return all(
            one.high_watermark >= min(self.written.get(key, 0), one.written) or one.stuck is not None
            for key, one in partitions.items()
        )


class AuditReader(TierReader):
    """A reader that counts one cluster until `stop` is set. It raises MillraceError when it cannot begin."""

    _numbers: ReaderNumbers

    def __init__(self, config: ReaderConfig, stop: threading.Event, numbers: ReaderNumbers) -> None:
        self._config = config
        self._client = ClusterClient(config.bootstrap, client_id=_CLIENT_ID, timeout_s=_CLUSTER_S)
        with ExitStack() as opened:
            opened.callback(self._client.close)
            cluster_id = self._client.cluster_id
            self._session = Session.connect(config.zookeeper)
            opened.callback(self._session.close)
            self._seat = self._find_seat()
            taker = TurnTaker(self._session, self._seat, cluster_id)
            super().__init__(
                taker, numbers, stop, interval_ms=config.interval_ms, may_replace=config.new_cluster
            )
            self.check_place()
            settings = [_SHARING, cluster_id, sorted(config.topics)]
            self._membership = Membership(self._session, self._seat, settings)
            opened.pop_all()
        self._rules = OffsetRules.of_cluster(cluster_id, None)
        self._mirrors = Mirrors(self._session, self._client)
        self._troubles: set[str] = set()
        """Newest errors of requests for mirrors' positions; each is logged once."""
        self._brokers = Brokers(self._client, _CLIENT_ID)
        self._registry = SchemaRegistryClient(config.registry)
        self._codec = AuditCodec(self._registry)
        self._publisher = AuditPublisher(config.bootstrap, config.counts_topic, timeout_s=_CLUSTER_S)
        self._counters: Mapping[Fingerprint, BatchCounter] = {
            digest: BatchCounter(self._is_audited, digest) for digest in (fingerprint, strong_fingerprint)
        }
        self._partitions: dict[PartitionKey, Partition] = {}
        numbers.partitions = self._partitions.values()
        self._covered: coverage.Ends = {}
        self._is_new_tier = True  # no reader has ever counted it
        self._counted_at = 0.0  # end of the last round that did not fail, or beginning of the turn
        self._away_s = 0.0  # pause before this reader, which failed, joins the others again
        self._unsent: deque[list[bytes]] = deque()
        self._changed: dict[PartitionKey, str] = {}  # partitions that appeared or vanished -> topic
        self._beats = 0
        self._joined: Mapping[str, Heartbeat] = {}  # other readers' heartbeats in the newest one published
        self._unhanded: Heartbeat | None = None  # heartbeat that could not be handed over yet
        self._reported_through = self._reported_at = 0  # the end of the reports, and when it was read
        self._claim: _Claim | None = None
        self._beat_due = self._all_positions_due = 0.0
        self._unlisted: dict[PartitionKey, float] = {}  # counted partitions that listings lack -> since when
        self._given_up = set[PartitionKey]()  # partitions that listings have lacked too long

    def disconnect(self) -> None:
        for part in (self._session, self._client, self._brokers, self._publisher, self._registry):
            part.close()

    # Turns.

    def _find_seat(self) -> Seat:
        name, at = self._config.cluster, self._config.bootstrap
        if self._config.tier == OFFLINE and (found := cluster_name(self._session, self._client)) != name:
            raise MillraceError(
                f"the cluster at {at} is {found}, not {name}: give the right --cluster and --bootstrap"
            )
        return Seat.of(self._config.tier, name)

    def refusal(self, newest: Turn) -> str:
        """Return the error text for a tier whose newest turn counted another cluster."""
        return (
            f"tier {self._config.tier} is another cluster: {newest.host} counted {newest.cluster_id} for it,"
            f" and this is {self._client.cluster_id}: give the right --cluster and --bootstrap, or"
            " --new-cluster if the tier's cluster was replaced"
        )

    def take_turn(self) -> Turn | Holder:
        """Return the turn of the reader that shares the tier with this one; else take an own turn."""
        self._taker.lost.clear()
        self._membership.enter()
        if (shares := self._membership.assigned()) is not None:
            if (turn := read_turns(self._session, self._seat).get(shares.turn)) is None:
                raise MillraceError(f"turn {shares.turn} of tier {self._config.tier} is gone from ZooKeeper")
            return turn
        taken = self._taker.take()
        if isinstance(taken, Turn) and taken.number <= self._membership.ended:
            self._taker.release()  # it was left, and could not be released
            taken = self._taker.take()
        self._membership.holds = isinstance(taken, Turn)
        return taken

    def stand_by(self, timeout_s: float) -> None:
        self._membership.wait(self._stop, timeout_s)

    def is_turn_over(self) -> bool:
        return self._membership.is_over()

    def release_turn(self) -> None:
        """Leave the turn, and end it if this reader holds the tier."""
        holds = self._membership.holds
        self._membership.leave()
        if holds:
            self._taker.release()

    def prepare(self, turn: Turn) -> None:
        """Find the ends of the counts before the turn. The reader that holds the tier first publishes that
        the turn has begun, and then lets the others count.
        """
        self._forget_turn()
        members = self._membership
        try:
            if members.holds:
                members.share(turn.number, self._stop)
                self._ensure_topics()
                self._send([self._codec.encode(Heartbeat(time=NOTHING, tier=self._config.tier))])
                self._find_covered(turn)
                members.publish()
            else:
                members.join(turn.number)
                self._find_covered(turn)
        except MillraceError:
            has_failed = not members.hands_over or not members.is_over()
            if members.is_shared or members.is_over():  # other readers wait for this one
                self.release_turn()
                if has_failed:
                    self._step_back()
            raise
        self._counted_at = time.monotonic()
        if members.shares is not None and members.is_shared:
            line = "tier %s is shared by %d readers in turn %d"
            logger.info(line, self._config.tier, len(members.shares.members), turn.number)

    def _forget_turn(self) -> None:
        self._partitions.clear()
        self._unsent.clear()
        self._changed.clear()
        self._unlisted.clear()
        self._given_up.clear()
        self._beats, self._claim, self._reported_at = 0, None, 0
        self._joined, self._unhanded = {}, None
        self._beat_due = self._all_positions_due = 0.0

    def _find_covered(self, turn: Turn) -> None:
        """Find the ends of this reader's partitions, and publish them for the readers of the next turn.

        This turn may end before its first heartbeat with a time, which names them.
        """
        is_mine = self._membership.is_mine
        topics = {PartitionKey(t.topic_id.hex, p): t.name for t in self._topics() for p in t.partitions}
        mine = {key: topic for key, topic in topics.items() if is_mine(key)}
        covered = self._covered_before(turn, mine)
        self._is_new_tier = not covered
        self._covered = {key: at for key, at in covered.items() if is_mine(key)}
        self._membership.check()
        known = [(mine[key], key, at) for key, at in self._covered.items() if key in mine]
        if known:
            positions = [ReaderPosition(topic, *key, at.next_offset, at.epoch) for topic, key, at in known]
            self._send_without_time(positions=positions)

    def _covered_before(self, turn: Turn, there: Collection[PartitionKey]) -> coverage.Ends:
        tier, topic = self._config.tier, self._config.counts_topic
        book = TurnBook(self._session, self._seat.cluster)
        before = max((n for n in read_turns(self._session, self._seat) if n < turn.number), default=None)
        return coverage.covered(self._client, topic, tier, self._codec, book, turn.number, before, there)

    def _ensure_topics(self) -> None:
        topics = self._client.topics()
        for name in (self._config.counts_topic, *([] if self._config.tier == OFFLINE else [AUDIT_TOPIC])):
            if name not in topics:
                with suppress(TopicAlreadyExists):
                    self._client.create_topic(name, 1, AUDIT_TOPIC_SETTINGS)

    def pause_s(self) -> float:
        """Return the pause after a failure; other readers wait for a reader that has a name."""
        return RETRY_S if self._membership.name else max(RETRY_S, self._away_s)

    def _step_back(self) -> None:
        """Leave the tier to its other readers for a while: a reader that fails would delay them all."""
        self._away_s = min(max(2 * self._away_s, _FIRST_AWAY_S), _LONGEST_AWAY_S)
        self._membership.disappear()

    # One round.

    def count_once(self) -> None:
        """Count all visible messages, publish the counts, and send a heartbeat if one is due or there was
        news.
        """
        try:
            self._count_visible()
        except MillraceError:
            if self._membership.is_shared and time.monotonic() >= self._counted_at + GIVE_UP_S:
                self._turn = self._numbers.turn = None
                self.release_turn()
                self._step_back()
            raise
        self._counted_at, self._away_s = time.monotonic(), 0.0

    def _count_visible(self) -> None:
        self._send([])  # messages that the last round could not publish
        self._hand_over()
        if self._membership.must_wait:
            return
        # The end of the reports is read before the topics: events reported before that end are acknowledged
        # by now, so they are counted below, even in a topic that began a moment ago.
        claim, self._claim = self._claim, None
        away: MillraceError | None = None
        if claim is None:
            try:
                self._note_reported()
            except MillraceError as error:  # the partitions of other brokers are counted nevertheless
                away = error
        leaders = self._follow(self._topics())
        stuck = {key for key, partition in self._partitions.items() if partition.stuck is not None}
        for leader, partitions in leaders.items():
            self._note_ends(leader, partitions)
        if claim is None:
            # Without a newer end no newer time: it would prove that no hello and no report was written since.
            claim = _Claim(self._reported_at, self._reported_through, {})
        for key, partition in self._partitions.items():
            if (
                partition.stuck is None
            ):  # a partition that could not be read then may have held as much as now
                claim.written.setdefault(key, partition.written)
        self._read(leaders)
        if self._stop.is_set():
            return
        if self._membership.is_over(look=False):
            self._publish(self._partitions.values())
            return
        self._note_origins()
        news = self._publish(self._partitions.values())
        changed = stuck != {key for key, partition in self._partitions.items() if partition.stuck is not None}
        self._beat_if_due(claim, has_news=news or changed or bool(self._changed))
        if away is not None:
            self._counted_at = time.monotonic()
            raise away

    def _beat_if_due(self, claim: _Claim, *, has_news: bool) -> None:
        others = {} if self._membership.hands_over else self._membership.heartbeats()
        is_due = has_news or self._membership.hands_over or time.monotonic() >= self._beat_due
        is_due |= others is not None and any(
            name not in self._joined or beat.number > self._joined[name].number
            for name, beat in others.items()
        )
        # A partition that the listing lacks was deleted, or a broker that has just started does not know it
        # yet. Until this is certain, no heartbeat is sent.
        if is_due and not self._unlisted and claim.time:
            if not claim.holds_for(self._partitions):
                self._claim, self._beat_due = claim, 0.0
            elif others is None:  # a reader has just begun to count its share
                self._beat_due = 0.0
            else:
                self._beat(claim, others, has_news=has_news)

    def _topics(self) -> list[TopicMetadata]:
        """Return the topics to count, and those that an earlier turn has counted."""
        counted = {key.topic_id for key in self._covered}
        topics = self._client.topics().items()
        return [topic for name, topic in topics if self._is_wanted(name) or topic.topic_id.hex in counted]

    def _is_wanted(self, topic: str) -> bool:
        if self._config.topics:
            return topic in self._config.topics
        return topic not in _AUDIT_TOPICS and not _is_internal(topic)

    def _note_reported(self) -> None:
        """Note the end of the reports, and the time. Raise MillraceError if its broker does not answer."""
        if self._config.tier != OFFLINE:
            self._reported_through = self._client.list_offsets(AUDIT_TOPIC, LATEST, [0])[0]
        self._reported_at = now_ms()

    def _follow(self, topics: Iterable[TopicMetadata]) -> dict[int, list[Partition]]:
        """Begin new partitions, and forget vanished partitions. Return the readable partitions by leader."""
        leaders: defaultdict[int, list[Partition]] = defaultdict(list)
        there = set[PartitionKey]()
        for topic in topics:
            for number, leader in topic.partitions.items():
                key = PartitionKey(topic.topic_id.hex, number)
                if not self._membership.is_mine(key):
                    continue
                there.add(key)
                partition = self._partitions.get(key)
                if partition is None:
                    partition = Partition(topic.name, key, self._rules, self._covered.get(key))
                    self._partitions[key] = partition
                    if partition.published_end is not None:
                        self._changed[key] = partition.topic
                if not self._is_wanted(topic.name):
                    self._stick(partition, CannotRead(LEFT_OUT))
                elif partition.is_due():
                    leaders[leader].append(partition)
        is_first = self._all_positions_due == 0
        self._given_up -= there
        missing = (self._partitions.keys() | (self._covered.keys() if is_first else set())) - there
        missing -= self._given_up
        now = time.monotonic()
        self._unlisted = {key: self._unlisted.get(key, now) for key in missing}
        for key in [key for key, since in self._unlisted.items() if now >= since + GONE_S]:
            del self._unlisted[key]
            self._given_up.add(key)
            if key in self._partitions:
                self._forget(key)
        return dict(leaders)

    def _forget(self, key: PartitionKey) -> None:
        partition = self._partitions.pop(key)
        self._changed[key] = partition.topic
        if partition.start is not None:  # if it is listed again, counting continues here
            self._covered[key] = partition.start

    def _note_ends(self, leader: int, partitions: Sequence[Partition]) -> None:
        """Look up the ends of the partitions, and the starts of partitions that were never counted."""
        named = {partition.name: partition for partition in partitions}
        try:
            new = [name for name, partition in named.items() if partition.published_end is None]
            earliest = self._brokers.earliest(leader, new)
            latest = self._brokers.latest(leader, named)
            written = latest if self._rules.byte_positions else self._brokers.written(leader, named)
            self._find_cuts(leader, named, latest)
        except CannotRead as error:
            for partition in partitions:
                self._stick(partition, error)
            return
        for name, partition in named.items():
            try:
                if partition.published_end is None:
                    # A partition that is new to a counted tier begins at 0: records deleted by now are lost.
                    is_new_tier = self._is_new_tier and self._all_positions_due == 0
                    log_start = _known(earliest, name)
                    partition.place(log_start if is_new_tier else 0)
                    self._changed[partition.key] = partition.topic
                ends = _known(latest, name), _known(written, name)
                partition.noted(*self._ends_of_copies(partition, *ends))
                if partition.truncated is not None:
                    line = "%s: %s-%d was truncated from offset %d to %d: the counted messages were lost"
                    logger.error(line, self._config.cluster, *name, partition.truncated, partition.end)
                    self._report_truncated(partition)
                if partition.stuck is not None and not partition.behind:
                    self._free(partition)
            except CannotRead as error:
                self._stick(partition, error)

    def _find_cuts(
        self,
        leader: int,
        named: Mapping[TopicPartition, Partition],
        latest: Mapping[TopicPartition, int | CannotRead],
    ) -> None:
        """Continue where logs that are shorter than counted were cut back, as far as their epochs show it.

        Their ends do not show it: after the cut they may have grown, by other messages.
        """
        short = [
            (name, Cursor(end, epoch=partition.cursor.epoch))
            for name, partition in named.items()
            if isinstance(end := latest.get(name), int) and end < partition.end
        ]
        for first in range(0, len(short), _PARTITIONS_PER_FETCH):
            asked = dict(short[first : first + _PARTITIONS_PER_FETCH])
            for name, part in self._brokers.fetch(leader, asked).items():
                if part.parting is not None:
                    self._follow_cut(named[name], part.parting)

    def _ends_of_copies(self, partition: Partition, end: int, written: int) -> tuple[int, int]:
        """Return the ends; for copies in an Apache Kafka at most the offset up to which their origin is
        known.
        """
        if self._config.tier != OFFLINE or end <= partition.end:
            return end, written
        try:
            if partition.origin is None:
                self._note_copy(partition)
            copied = self._mirrors.copied_end(partition.topic, *partition.key, end)
        except MillraceError as error:
            raise CannotRead(str(error)) from error
        if copied is None:
            return end, written
        partition.limit = max(copied, partition.end)
        return min(end, partition.limit), min(written, partition.limit)

    def _note_copy(self, partition: Partition) -> None:
        """Find the partition's origin before anything is read: otherwise the partition would not count as a
        copy.
        """
        try:
            origin = self._mirrors.origin(partition.topic, *partition.key)
        except NotInZooKeeper:
            if not self._mirrors.in_kafka:
                raise
            return  # a topic that is not copied there
        if origin is not None:
            partition.copied(origin, None, 0)

    def _read(self, leaders: Mapping[int, Sequence[Partition]]) -> None:
        """Read every partition to its noted end, by fetches of several partitions each."""
        left = {
            leader: [p for p in partitions if self._may_read(p)] for leader, partitions in leaders.items()
        }
        while any(left.values()) and not self._stop.is_set() and not self._membership.is_over(look=False):
            for leader, partitions in left.items():
                asked = {p.name: p for p in partitions[:_PARTITIONS_PER_FETCH]}
                before = {name: p.cursor for name, p in asked.items()}
                try:
                    fetched = self._brokers.fetch(leader, before) if before else {}
                except CannotRead as error:
                    for partition in partitions:
                        self._stick(partition, error)
                    fetched = {}
                for name, part in fetched.items():
                    self._count(asked[name], part)
                rest = partitions[_PARTITIONS_PER_FETCH:] + [p for p in asked.values() if self._may_read(p)]
                if all(p.cursor == before[name] for name, p in asked.items()):
                    rest = partitions[_PARTITIONS_PER_FETCH:]  # an open transaction holds them back (Kafka)
                left[leader] = rest

    def _note_origins(self) -> None:
        """Request the mirrors' positions: a mirror's newest position is invisible before its next append."""
        if self._config.tier != OFFLINE:
            return
        now, troubles = time.monotonic(), set[str]()
        for partition in self._partitions.values():
            if partition.published_end is None or partition.stuck is not None:
                continue
            if partition.end == partition.published_end and now < partition.ask_at:
                continue
            partition.ask_at = now + _ASK_AGAIN_S
            try:
                origin = self._mirrors.origin(partition.topic, *partition.key)
                if origin is not None:
                    where = (partition.topic, *partition.key)
                    partition.copied(origin, *self._mirrors.position(*where, origin, partition.end))
            except MillraceError as error:  # the position known before still holds
                troubles.add(str(error))
        for trouble in sorted(troubles - self._troubles):
            logger.warning("the mirror's position is not known: %s; trying again", trouble)
        if troubles:  # a pass without troubles may have asked no leader
            self._troubles = troubles

    def _may_read(self, partition: Partition) -> bool:
        return partition.behind and partition.is_due()

    def _count(self, partition: Partition, fetched: FetchedPartition) -> None:
        if fetched.parting is not None:
            self._follow_cut(partition, fetched.parting)
            return
        try:
            counter = self._counters[fingerprint_of(partition.topic, self._config.policies)]
            for part in partition.take(fetched, counter):
                self._numbers.counted(partition.topic, part)
                if partition.tally.bytes + partition.aborted.bytes > COUNT_BYTES:
                    self._publish([partition])
            self._free(partition)
        except CannotRead as error:
            self._stick(partition, error)

    def _follow_cut(self, partition: Partition, parting: Parting) -> None:
        name, cursor = f"{partition.topic}-{partition.key.partition}", partition.cursor
        logger.error("%s", log_was_cut(name, cursor.next_offset, cursor.epoch, parting))
        partition.truncate(parting.end)
        if partition.truncated is not None:
            self._report_truncated(partition)

    def _stick(self, partition: Partition, error: CannotRead) -> None:
        if partition.stick(str(error)):
            where = (self._config.cluster, partition.topic, partition.key.partition, partition.end)
            logger.error("%s: %s-%d is not counted from offset %d on: %s", *where, error)

    def _free(self, partition: Partition) -> None:
        if partition.stuck is not None:
            partition.stuck = None
            logger.info(
                "%s: %s-%d is counted again", self._config.cluster, partition.topic, partition.key.partition
            )

    def _is_audited(self, schema_id: int) -> bool:
        try:
            return has_header(self._registry.schema(schema_id))
        except UnknownSchema:
            return False
        except MillraceError as error:
            raise CannotRead(str(error)) from error

    # Publishing.

    def _publish(self, partitions: Iterable[Partition]) -> bool:
        """Publish the counts of the partitions. Return True if there were any."""
        if not any(partition.has_news for partition in partitions):
            return False
        # Fetches name topics, not ids. An id never comes back: if it is listed now, all records that were
        # read belong to it.
        there = {topic.topic_id.hex for topic in self._topics()}
        for key in self._partitions:
            if key.topic_id not in there:
                self._unlisted.setdefault(key, time.monotonic())
        read = [p for p in partitions if p.has_news and p.key.topic_id in there]
        now = now_ms()
        # Encode first: the registry may be down, and counts that are noted as published are not counted
        # again.
        messages = [self._codec.encode(self._count_of(partition, now)) for partition in read]
        for partition in read:
            partition.published()
        self._send(messages)
        return True

    def _count_of(self, partition: Partition, now: int) -> Count:
        assert partition.start is not None
        return Count(
            time=now,
            tier=self._config.tier,
            topic=partition.topic,
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            start=partition.start.next_offset,
            end=partition.end,
            leader_epoch=partition.cursor.epoch,
            expired=partition.lost,
            origin=partition.origin,
            copied_through=partition.copied_through,
            counts=partition.tally.counts,
            foreign=partition.tally.foreign_counts(),
            aborted=partition.aborted.counts.without_fingerprints(),
        )

    def _beat(self, claim: _Claim, others: Mapping[str, Heartbeat], *, has_news: bool) -> None:
        """Publish a heartbeat, with those of the other readers of the tier, or hand it over."""
        is_full = time.monotonic() >= self._all_positions_due
        hands_over = self._membership.hands_over
        self._beats += not hands_over or has_news or is_full
        beat = Heartbeat(
            time=claim.time,
            tier=self._config.tier,
            number=self._beats,
            reported_through=None if self._config.tier == OFFLINE else claim.reported_through,
            positions=self._positions(is_full=is_full),
            unreadable=[
                Unreadable(partition.topic, *partition.key, partition.end, partition.stuck.cause)
                for partition in self._partitions.values()
                if partition.stuck is not None
            ],
        )
        self._changed.clear()
        if hands_over:
            self._unhanded = beat
            self._hand_over()
        else:
            published = {name: known.number for name, known in self._joined.items()}
            self._send([self._codec.encode(joined(beat, others, published))])
            if any(known.positions for known in others.values()):
                self._membership.publish(others)
            self._joined = others
        self._numbers.heartbeat_at = time.time()
        self._beat_due = time.monotonic() + IDLE_HEARTBEAT_S
        if is_full:
            self._all_positions_due = time.monotonic() + coverage.ALL_POSITIONS_S

    def _positions(self, *, is_full: bool) -> list[ReaderPosition]:
        named = dict(self._changed)
        if is_full:
            named |= {key: p.topic for key, p in self._partitions.items() if p.published_end is not None}
        positions = []
        for key, topic in named.items():
            at = self._partitions[key].start if key in self._partitions else None
            offset, epoch = (None, -1) if at is None else (at.next_offset, at.epoch)
            positions.append(ReaderPosition(topic, *key, offset, epoch))
        return positions

    def _hand_over(self) -> None:
        if self._unhanded is not None:
            self._membership.hand_over(self._unhanded)
            self._unhanded = None

    def _report_truncated(self, partition: Partition) -> None:
        """Report that a partition was truncated, before its next count: that would look like a repeat."""
        assert partition.truncated is not None
        log = Truncated(partition.topic, *partition.key, partition.truncated, partition.end)
        partition.truncated = None
        self._send_without_time(truncated=[log])

    def _send_without_time(self, **contents: Any) -> None:
        """Publish a heartbeat that claims nothing; of the tier's readers, only the holder numbers its own."""
        if not self._membership.hands_over:
            self._beats += 1
        number = 0 if self._membership.hands_over else self._beats
        beat = Heartbeat(time=NOTHING, tier=self._config.tier, number=number, **contents)
        self._send([self._codec.encode(beat)])

    def _send(self, messages: list[bytes]) -> None:
        """Publish the messages, after all messages that could not be published before.

        A message without an acknowledgement may be in the topic nevertheless, or arrive later. The same bytes
        are sent again before anything else. Therefore a partition's second count never overtakes its first.
        """
        assert self._turn is not None
        if messages:
            self._unsent.append(messages)
        while self._unsent:
            messages = self._unsent[0]
            self._publisher.publish(messages, keys=[self._turn.key(message) for message in messages])
            self._unsent.popleft()


def _is_internal(topic: str) -> bool:
    """Return True for topics that Apache Kafka and MirrorMaker 2 keep for themselves."""
    return topic.startswith("__") or topic.endswith(".internal")


def _known(offsets: Mapping[TopicPartition, int | CannotRead], name: TopicPartition) -> int:
    answer = offsets.get(name, CannotRead("its broker does not report it"))
    if isinstance(answer, CannotRead):
        raise answer
    return answer
