"""Clusters' records in the audit topics, as a test writes them: every partition in order, with its offsets.

A record is put where its writer would put it. The order between partitions is the auditor's: `apply`
takes what is new of each, `interleaved` all of it, in any order between partitions, in batches of any size.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.orm import Session

from millrace_audit.answer import Completeness, to_json
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.ledger import Entry, Place
from millrace_audit.auditor.service import answers, explaining
from millrace_audit.auditor.service.acceptance import accept
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.fingerprints import fingerprint, wrapped
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    OF_THE_WAREHOUSE,
    OFFLINE,
    WAREHOUSE,
    AuditRecord,
    Count,
    Decision,
    ForeignCount,
    Heartbeat,
    Hello,
    HourRows,
    LoadCount,
    LoadEnd,
    LoadNumber,
    Origin,
    ReaderPosition,
    RejectedMessages,
    Report,
    ReportedWindow,
    TableCount,
    Truncated,
    UnkeyedRows,
    Unreadable,
    Verified,
    VerifyProblem,
    WarehouseState,
)
from millrace_audit.reports.ranges import Range, SequenceRanges
from millrace_audit.reports.seals import seal_of

W = 1_431_856_800_000
NOW = W + 10 * WINDOW_MS
TOPIC = "PageView"
OPTIONS = AuditOptions(origins=("dc1", "dc2"), grace_ms=60_000, clock_ms=lambda: NOW)
STEP = 100
SAID, COUNTED, OWN = "audit", "audit-counts", "audit-offline"
_TAKES: dict[str, tuple[type[AuditRecord], ...]] = {
    SAID: (Hello, Report),
    COUNTED: (Count, Heartbeat),
    OWN: (Count, Heartbeat, *OF_THE_WAREHOUSE, Decision),
}


def key_of(instance: int, number: int, cluster: str = "dc1") -> bytes:
    return hashlib.md5(f"{cluster}/{instance}/{number}".encode()).digest()


def prints(instance: int, ranges: Sequence[Range], content: str = "") -> int:
    """Return the sum of the fingerprints of the messages with those numbers."""
    numbers = (n for first, last in ranges for n in range(first, last + 1))
    return wrapped(sum(fingerprint(f"{content}{instance}/{n}".encode()) for n in numbers))


def found(
    *ranges: Range,
    instance: int = 1,
    window: int = W,
    content: str = "",
    server: str | None = None,
    has_names: bool = True,
) -> SequenceCounts:
    """Counts of one instance; without names of events whose header is a record header."""
    names = (server or f"web-{instance}", "shop") if has_names else ("", "")
    counts = SequenceCounts()
    for pair in ranges:
        mark = prints(instance, [pair], content)
        counts.add(*names, instance, window, *pair, fingerprint=mark)
    return counts


class Story:
    """Records by partition of the audit topics, and a database that they are applied to."""

    def __init__(self, store: AuditStore, options: AuditOptions = OPTIONS) -> None:
        self.store, self.options = store, options
        self.partitions: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        self._applied: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.ends: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._looked: Counter[str] = Counter()
        self.loads = self.published = 0

    # What is said.

    def say(self, topic: str, tier: str, record: AuditRecord | None, turn: int | None = None) -> None:
        there = self.partitions[topic, tier]
        offset = len(there) * STEP
        kind = None if record is None else type(record)
        there.append(Entry(record, offset, repr(record).encode(), offset + STEP, turn, kind))

    def said_end(self, cluster: str = "dc1") -> int:
        """The end of a cluster's audit topic."""
        return len(self.partitions[SAID, cluster]) * STEP

    def hello(
        self,
        instance: int = 1,
        cluster: str = "dc1",
        *,
        topic: str = TOPIC,
        closed: int = NOTHING,
        at: str = "",
        **other: Any,
    ) -> None:
        who: dict[str, Any] = {"server": f"web-{instance}", "service": "shop", **other}
        seal = who.pop("seal", seal_of(key_of(instance, 0, cluster)))
        time = who.pop("time", W)
        record = Hello(
            time=time,
            cluster=cluster,
            instance=instance,
            topic=topic,
            closed_through=closed,
            seal=seal,
            **who,
        )
        self.say(SAID, at or cluster, record)

    def report(
        self,
        number: int,
        *ranges: Range,
        instance: int = 1,
        window: int = W,
        closed: int = FOR_EVER,
        failed: tuple[Range, ...] = (),
        cluster: str = "dc1",
        at: str = "",
        topic: str = TOPIC,
        time: int = W,
        fingerprinted: bool = True,
        **other: Any,
    ) -> None:
        sums = [prints(instance, of) if fingerprinted else 0 for of in (ranges, failed)]
        told = ReportedWindow(topic, window, SequenceRanges(ranges), SequenceRanges(failed), *sums)
        values: dict[str, Any] = {
            "server": f"web-{instance}",
            "service": "shop",
            "key": key_of(instance, number, cluster),
            "seal": seal_of(key_of(instance, number + 1, cluster)),
            **other,
        }
        record = Report(
            time=time,
            cluster=cluster,
            instance=instance,
            number=number,
            closed_through=closed,
            fingerprinted=fingerprinted,
            **{"windows": [told] if ranges or failed else [], **values},
        )
        self.say(SAID, at or cluster, record)

    def count(
        self,
        tier: str,
        counts: SequenceCounts,
        *,
        cluster: str = "dc1",
        partition: int = 0,
        topic: str = TOPIC,
        turn: int | None = 1,
        foreign: Sequence[ForeignCount] = (),
        size: int = STEP,
        **other: Any,
    ) -> None:
        """Append to a partition of a tier; offline, to the partition that mirrors the cluster's."""
        origin, number = None, partition
        end = self.ends[tier, cluster, partition] + size
        if tier == OFFLINE and cluster != OFFLINE:
            number = 10 * (ord(cluster[-1]) - ord("0")) + partition
            origin = Origin(cluster, f"{cluster}-{topic}", partition, end)
        values: dict[str, Any] = {"start": end - size, "end": end, "origin": origin}
        values["copied_through"] = None if origin is None else end
        values |= {"topic_id": f"{tier}-{topic}", "time": NOW, **other}
        self.ends[tier, cluster, partition] = values["end"]
        record = Count(tier=tier, topic=topic, partition=number, counts=counts, foreign=foreign, **values)
        self.say(*self._counts_of(tier), record, turn)

    def beat(
        self,
        tier: str,
        time: int = NOW,
        *,
        turn: int | None = 1,
        through: int | None = None,
        positions: Sequence[ReaderPosition] = (),
        unreadable: Sequence[Unreadable] = (),
        truncated: Sequence[Truncated] = (),
    ) -> None:
        """A heartbeat; of an origin one that has counted what was reported so far."""
        if through is None and tier != OFFLINE:
            through = self.said_end(tier)
        place = self._counts_of(tier)
        record = Heartbeat(
            time=time,
            tier=tier,
            number=len(self.partitions[place]) + 1,
            reported_through=through,
            positions=positions,
            unreadable=unreadable,
            truncated=truncated,
        )
        self.say(*place, record, turn)

    def beats(self, time: int = NOW) -> None:
        """Two of every tier: the second one says that nothing else was reported before the first."""
        for tier in ("dc1", "dc2", OFFLINE):
            self.beat(tier, time - 6000)
            self.beat(tier, time)

    def _counts_of(self, tier: str) -> tuple[str, str]:
        return (OWN, OFFLINE) if tier == OFFLINE else (COUNTED, tier)

    def load(
        self,
        counts: SequenceCounts,
        *,
        topic: str = TOPIC,
        source: LoadNumber | None = None,
        removed: SequenceCounts | None = None,
        whole: bool = True,
        turn: int | None = 1,
        unkeyed: Sequence[UnkeyedRows] | None = None,
        rejected: Sequence[RejectedMessages] = (),
        hours: Sequence[HourRows] | None = None,
        is_of_before: bool = False,
    ) -> None:
        """A load that brings the topic as far as it is counted offline by now.

        Its rows lie in the hours of their windows, and it has those without a header that were counted.
        """
        self.loads += source is None
        if unkeyed is None:
            unkeyed = self._not_loaded(topic)
        if hours is None:
            rows = Counter[int]()
            for key, tally in counts.tallies.items():
                rows[key.window - key.window % HOUR_MS] += tally.total
            for each in unkeyed:
                rows[each.window - each.window % HOUR_MS] += each.rows
            hours = [HourRows(hour, count) for hour, count in sorted(rows.items())]
        ends = [
            LoadEnd(record.topic_id, record.partition, record.end)
            for record in (heard.record for heard in self.partitions[OWN, OFFLINE])
            if isinstance(record, Count) and record.topic == topic
        ]
        record = LoadCount(
            time=NOW,
            topic=topic,
            source=source or LoadNumber(self.loads),
            counts=counts,
            removed=removed or SequenceCounts(),
            ends=ends if whole else [],
            hours=None if is_of_before else hours,
            unkeyed=None if is_of_before else unkeyed,
            rejected=rejected,
        )
        self.say(OWN, OFFLINE, record, turn)

    def _not_loaded(self, topic: str) -> list[UnkeyedRows]:
        """Messages without a header that were counted offline since the load before."""
        there, at = self.partitions[OWN, OFFLINE], self._looked[topic]
        self._looked[topic] = len(there)
        rows = Counter[int]()
        for record in (heard.record for heard in there[at:]):
            if isinstance(record, Count) and record.topic == topic:
                for foreign in record.foreign:
                    rows[foreign.window] += foreign.messages
        return [UnkeyedRows(window, count) for window, count in sorted(rows.items())]

    def state(
        self,
        load: int,
        sha256: str = "",
        *,
        topic: str = TOPIC,
        editions: str = "",
        exists: bool = False,
        trouble: str = "",
        live_through: int | None = None,
        time: int = NOW,
        turn: int | None = 1,
    ) -> None:
        """Say the state of the topic in the warehouse's folder and in the catalog."""
        self.published += 1
        record = WarehouseState(
            time=time,
            topic=topic,
            number=self.published,
            load=load,
            sha256=sha256,
            editions=editions,
            exists=exists,
            trouble=trouble,
            live_through=live_through,
        )
        self.say(OWN, OFFLINE, record, turn)

    def warehouse_beat(self, time: int, turn: int | None = 1) -> None:
        """A heartbeat of the warehouse's reader, in one series with the numbers of its states."""
        self.published += 1
        self.say(OWN, OFFLINE, Heartbeat(time=time, tier=WAREHOUSE, number=self.published), turn)

    def publish(
        self,
        counts: SequenceCounts,
        *,
        topic: str = TOPIC,
        windows: Sequence[int] = (W,),
        number: int | None = None,
        turn: int | None = 1,
        unkeyed: Sequence[UnkeyedRows] | None = (),
    ) -> None:
        """Report the rows that the published table holds of these windows now."""
        self.published += 1
        record = TableCount(
            time=NOW,
            topic=topic,
            number=self.published if number is None else number,
            snapshot=7,
            replaces=windows,
            counts=counts,
            unkeyed=unkeyed,
        )
        self.say(OWN, OFFLINE, record, turn)

    def verified(self, *problems: tuple[int | None, str], topic: str = TOPIC, turn: int | None = 1) -> None:
        """Report the problems that `verify` found: hour and text."""
        self.published += 1
        found = [VerifyProblem(*problem) for problem in problems]
        self.say(OWN, OFFLINE, Verified(time=NOW, topic=topic, number=self.published, problems=found), turn)

    def carry(self, counts: SequenceCounts, cluster: str = "dc1", **options: Any) -> None:
        """Events at every tier."""
        self.count(cluster, counts, cluster=cluster, **options)
        self.count(OFFLINE, counts, cluster=cluster, **options)
        self.load(counts)

    def whole(self, *, last: int = 9) -> None:
        """An instance sends its events and ends, and everything arrives."""
        self.hello()
        self.report(0, (0, last))
        self.carry(found((0, last)))
        self.beats()

    # What becomes of it.

    def place(self, key: tuple[str, str]) -> Place:
        topic, tier = key
        return Place(topic, f"{topic}-id", 0, tier, _TAKES[topic])

    def apply(self) -> Story:
        """Apply what is new, a partition after the other, and settle."""
        self.apply_only()
        self.settle()
        return self

    def apply_only(self) -> None:
        """Apply what is new, a partition after the other, and judge nothing."""
        for key, there in self.partitions.items():
            with self.store.writing() as session:
                ledger.apply(session, self.place(key), there[self._applied[key] :], self.options.clock_ms())
            self._applied[key] = len(there)

    def interleaved(self, store: AuditStore, dice: random.Random, *, from_half: bool = False) -> Story:
        """Return the same story in another database, with the partitions in another order.

        With `from_half`, a part of each partition is applied and judged first.
        """
        other = Story(store, self.options)
        other.partitions = self.partitions
        left = {key: 0 for key, there in self.partitions.items() if there}
        if from_half:
            left = {key: dice.randrange(len(self.partitions[key])) for key in left}
            for key, end in left.items():
                with store.writing() as session:
                    ledger.apply(
                        session, other.place(key), self.partitions[key][:end], self.options.clock_ms()
                    )
            other.settle()
        while left:
            key = dice.choice(sorted(left))
            there = self.partitions[key]
            end = min(len(there), left[key] + dice.randint(1, 5))
            with store.writing() as session:
                ledger.apply(session, other.place(key), there[left[key] : end], self.options.clock_ms())
            left[key] = end
            if end == len(there):
                del left[key]
            if dice.random() < 0.2:
                other.settle()
        other.settle()
        return other

    def settle(self) -> int:
        return Judging(self.store, self.options).turn(math.inf)

    def accept(self, **said: Any) -> list[int]:
        with self.store.writing() as session:
            decision, instances = accept(
                session, self.options, **{"reason": "burnt down", "who": "me", **said}
            )
        if instances:
            self.decide(decision)
            self.apply_only()
        return instances

    def decide(self, decision: Decision) -> None:
        """Append a decision to its partition."""
        self.say(OWN, OFFLINE, decision, 1)

    def completeness(self, start: int = W, windows: int = 1, topic: str = TOPIC) -> Completeness:
        with self.store.reading() as session:
            return answers.completeness(session, self.options, topic, start, start + windows * WINDOW_MS)

    def answer(self, start: int = W, windows: int = 1, topic: str = TOPIC) -> dict[str, Any]:
        answer: dict[str, Any] = to_json(self.completeness(start, windows, topic))
        return answer

    def window(self, start: int = W, topic: str = TOPIC) -> dict[str, Any]:
        (window,) = self.answer(start, topic=topic)["windows"]
        assert isinstance(window, dict)
        self._check_explanation(window, start, topic)
        return window

    def explanation(self, start: int = W, topic: str = TOPIC, limit: int = 100) -> dict[str, Any]:
        with self.store.reading() as session:
            return explaining.explain(session, self.options, topic, start, limit)

    def _check_explanation(self, window: dict[str, Any], start: int, topic: str) -> None:
        """Check that the facts of a judged window lead to its verdict again.

        A final verdict stays when lost counts, lost reports or a further producer become known later.
        """
        found = self.explanation(start, topic)
        stored = found["stored"]
        if stored is None or not stored["has_new_facts"]:
            came_later = any(found["facts"][kind] for kind in ("gaps", "streams", "debts"))
            is_kept = stored is not None and stored["is_final"] and came_later
            assert found["verdict"] == window["verdict"] or is_kept, found
            fired = [cause["reason"] for rule in found["rules"] for cause in rule["causes"]]
            assert len(fired) >= len(window["findings"]), found

    def verdict(self, start: int = W, topic: str = TOPIC) -> str:
        return str(self.window(start, topic)["verdict"])

    def findings(self, start: int = W) -> list[tuple[str, str, Any]]:
        return [(f["kind"], f["tier"], f["sequences"] or f["count"]) for f in self.window(start)["findings"]]

    def rejected_records(self) -> list[tuple[str, str]]:
        with self.store.reading() as session:
            return sorted((row["kind"], row["cause"]) for row in answers.rejected_records(session))

    def reading(self) -> Iterator[Session]:
        with self.store.reading() as session:
            yield session
