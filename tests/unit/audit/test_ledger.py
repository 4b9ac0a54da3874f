from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from millrace.errors import MillraceError
from millrace_audit.answer import LAST_MS, Completeness, iso, to_json
from millrace_audit.auditor import answers, auditor, ledger
from millrace_audit.auditor.answers import AuditRules
from millrace_audit.auditor.store import AuditStore, CountedRow, Row
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts, window_start
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    AuditCodec,
    AuditRecord,
    Count,
    Heartbeat,
    Hello,
    LoadNumber,
    OffsetRange,
    ReaderPosition,
    Report,
    ReportedWindow,
)
from millrace_audit.reports.publish import edition_records
from millrace_audit.reports.ranges import SequenceRanges
from tests.unit.audit.test_messages import Ids

W = 1_431_856_800_000
NOW = W + 10 * WINDOW_MS
RULES = AuditRules(origins=("dc1", "dc2"), grace_ms=60_000)
TOPIC = "PageView"


class Audit:
    """A store with records applied to it, each in a transaction as the auditor does."""

    def __init__(self, store: AuditStore) -> None:
        self.store = store

    def apply(self, *records: AuditRecord) -> None:
        with self.store.writing() as session:
            for record in records:
                ledger.apply(session, record)

    def settle(self) -> None:
        with self.store.writing() as session:
            answers.settle(session, RULES)

    def answer(self, start: int = W, windows: int = 1, topic: str = TOPIC) -> dict[str, Any]:
        with self.store.reading() as session:
            end = start + windows * WINDOW_MS
            answer: dict[str, Any] = to_json(answers.completeness(session, RULES, topic, start, end))
            return answer

    def window(self, start: int = W) -> dict[str, Any]:
        (window,) = self.answer(start)["windows"]
        assert isinstance(window, dict)
        return window


@pytest.fixture(params=["sqlite", "postgresql"])
def audit(request: pytest.FixtureRequest) -> Iterator[Audit]:
    """An empty store, in SQLite and in PostgreSQL."""
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = AuditStore(url)
    Row.metadata.drop_all(store._engine)
    Row.metadata.create_all(store._engine)
    yield Audit(store)
    store.close()


def hello(instance: int = 1, cluster: str = "dc1", topic: str = TOPIC) -> Hello:
    return Hello(
        time=W, cluster=cluster, server=f"web-{instance}", service="shop", instance=instance, topic=topic
    )


def report(
    number: int,
    *ranges: tuple[int, int],
    instance: int = 1,
    window: int = W,
    closed: int = FOR_EVER,
    failed: tuple[tuple[int, int], ...] = (),
    cluster: str = "dc1",
) -> Report:
    told = ReportedWindow(TOPIC, window, SequenceRanges(ranges), SequenceRanges(failed))
    return Report(
        time=W,
        cluster=cluster,
        server=f"web-{instance}",
        service="shop",
        instance=instance,
        number=number,
        closed_through=closed,
        windows=[told] if ranges or failed else [],
    )


def heartbeat(tier: str, reader: int = 100, time: int = NOW) -> Heartbeat:
    return Heartbeat(time=time, cluster=tier, tier=tier, reader=reader, positions=[])


def found(*ranges: tuple[int, int], instance: int = 1, window: int = W) -> SequenceCounts:
    counts = SequenceCounts()
    for first, last in ranges:
        counts.add(f"web-{instance}", "shop", instance, window, first, last)
    return counts


def count(
    tier: str, start: int, end: int, counts: SequenceCounts, *, reader: int = 100, partition: int = 0
) -> Count:
    source = OffsetRange(
        reader=reader, cluster=tier, topic_id="ab", partition=partition, start=start, end=end
    )
    return Count(time=NOW, tier=tier, topic=TOPIC, source=source, foreign=0, counts=counts)


def load(number: int, counts: SequenceCounts) -> Count:
    return Count(time=NOW, tier="warehouse", topic=TOPIC, source=LoadNumber(number), foreign=0, counts=counts)


BEATS: list[AuditRecord] = [heartbeat("dc1"), heartbeat("dc2"), heartbeat("offline")]
WHOLE: list[AuditRecord] = [
    hello(),
    report(0, (0, 9)),
    count("dc1", 0, 900, found((0, 9))),
    count("offline", 0, 900, found((0, 9))),
    load(1, found((0, 9))),
    *BEATS,
]


def test_a_whole_story_is_complete_and_moves_the_watermark(audit: Audit) -> None:
    audit.apply(*WHOLE)
    answer = audit.answer()
    assert answer["verdict"] == "complete"
    assert answer["watermark"] == "2015-05-17T11:30:00Z", "as far as the heartbeats less the grace"
    assert answer["windows"][0]["tiers"] == {"dc1": 10, "offline": 10, "warehouse": 10}
    assert answer["windows"][0]["acknowledged"] == 10


def test_every_record_counts_once_however_often_it_comes(audit: Audit) -> None:
    audit.apply(*WHOLE, *WHOLE, *reversed(WHOLE))
    assert audit.answer()["verdict"] == "complete"


@pytest.mark.parametrize("seed", range(5))
def test_the_order_between_clusters_does_not_matter(audit: Audit, seed: int) -> None:
    parts: list[list[AuditRecord]] = [
        [
            hello(),
            heartbeat("dc1", time=W),
            report(0, (0, 4), closed=NOTHING),
            report(1, (5, 9)),
            count("dc1", 0, 500, found((0, 4))),
            count("dc1", 500, 900, found((5, 9))),
            heartbeat("dc1"),
        ],
        [
            hello(2, "dc2"),
            report(0, (0, 3), instance=2, cluster="dc2"),
            count("dc2", 0, 400, found((0, 3), instance=2)),
            heartbeat("dc2"),
        ],
        [
            count("offline", 0, 900, found((0, 9))),
            count("offline", 0, 400, found((0, 3), instance=2), partition=1),
            heartbeat("offline"),
            load(1, found((0, 9))),
            load(2, found((0, 3), instance=2)),
        ],
    ]
    chance = random.Random(seed)
    while any(parts):
        part = chance.choice([part for part in parts if part])
        audit.apply(part.pop(0))
    assert audit.answer()["verdict"] == "complete"
    assert audit.window()["tiers"] == {"dc1": 10, "dc2": 4, "offline": 14, "warehouse": 14}


def test_a_topic_nobody_has_spoken_of_is_unknown_never_complete(audit: Audit) -> None:
    audit.apply(*BEATS)
    answer = audit.answer(windows=2)
    assert (answer["verdict"], answer["watermark"]) == ("unknown", None)
    assert [window["verdict"] for window in answer["windows"]] == ["unknown", "unknown"]
    assert "no producer and no reader has spoken of topic PageView" in answer["windows"][0]["reasons"]


def test_only_a_range_that_goes_on_where_the_partition_is_covered_is_taken(audit: Audit) -> None:
    audit.apply(*WHOLE[:2], *BEATS, load(1, found((0, 9))), count("offline", 0, 900, found((0, 9))))
    audit.apply(
        count("dc1", 100, 500, found((0, 4))),  # the first begins wherever it begins
        count("dc1", 100, 500, found((0, 4))),
        count("dc1", 400, 600, found((4, 5))),
        count("dc1", 600, 900, found((6, 9))),
        count("dc1", 500, 900, found((5, 9))),
        count("dc1", 500, 900, found((5, 9))),
    )
    assert audit.answer()["verdict"] == "complete"


def test_a_reader_whose_turn_is_over_is_not_listened_to(audit: Audit) -> None:
    audit.apply(
        *WHOLE[:2],
        *BEATS,
        load(1, found((0, 9))),
        count("offline", 0, 900, found((0, 9))),
        count("dc1", 0, 500, found((0, 4))),
        heartbeat("dc1", reader=101, time=NOTHING),
        count("dc1", 500, 800, found((5, 7)), reader=100),  # sent before it was killed, arrived after
        heartbeat("dc1", reader=100, time=FOR_EVER),
        count("dc1", 500, 900, found((5, 9)), reader=101),
    )
    assert audit.answer()["verdict"] == "complete"
    with audit.store.reading() as session:
        assert answers.heartbeats(session)["dc1"] == "2015-05-17T11:40:00Z"


def test_a_missing_report_keeps_the_topic_unknown_until_it_arrives(audit: Audit) -> None:
    audit.apply(hello(), report(0, (0, 3), closed=NOTHING), report(2, (7, 9)), *WHOLE[2:])
    window = audit.window()
    assert window["verdict"] == "unknown"
    assert window["reasons"] == ["report 1 of instance 1 (shop on web-1 in dc1) is missing"]
    assert audit.answer()["watermark"] is None
    audit.apply(report(1, (4, 6), closed=NOTHING))
    assert audit.window()["verdict"] == "complete", "an older report does not take the closing back"


def test_an_instance_that_only_said_hello_keeps_its_topic_unknown_and_no_other(audit: Audit) -> None:
    audit.apply(*WHOLE, hello(7, topic="SearchQuery"))
    assert audit.answer()["verdict"] == "complete"
    assert audit.answer(topic="SearchQuery")["verdict"] == "unknown"
    audit.apply(hello(7))
    assert audit.answer()["verdict"] == "unknown"


def test_an_accepted_instance_goes_on_with_its_reason_in_sight(audit: Audit) -> None:
    audit.apply(*WHOLE, hello(7))
    with audit.store.writing() as session:
        ledger.accept(session, 7, "host burnt down", NOW)
    window = audit.window()
    assert window["verdict"] == "complete"
    assert window["reasons"][0].endswith("accepted: host burnt down")


def test_an_instance_that_nobody_has_heard_of_is_not_accepted(audit: Audit) -> None:
    audit.apply(*WHOLE)
    auditor.accept(audit.store, 1, "its host is gone")
    with pytest.raises(MillraceError, match="nobody has heard of instance 7"):
        auditor.accept(audit.store, 7, "mistyped")


def test_a_stranger_can_be_accepted_before_anything_is_known_of_it(audit: Audit) -> None:
    everywhere = found((0, 2), instance=9)
    audit.apply(
        *WHOLE, count("dc2", 0, 9, everywhere), count("offline", 900, 999, everywhere), load(2, everywhere)
    )
    assert {f["kind"] for f in audit.window()["findings"]} == {"unexpected"}
    with audit.store.writing() as session:
        ledger.accept(session, 9, "a test client", NOW)
    assert audit.window()["verdict"] == "complete"
    assert audit.window()["reasons"] == [
        "instance 9 (shop on web-9) was never announced; accepted: a test client"
    ]
    audit.apply(hello(9, "dc2"))
    assert audit.window()["verdict"] == "complete"
    assert "shop on web-9 in dc2" in audit.window()["reasons"][0]


def test_a_late_report_raises_the_revision_and_opens_the_verdict_again(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    assert (audit.window()["verdict"], audit.window()["revision"]) == ("complete", 0)
    audit.apply(report(1, (10, 11)))
    window = audit.window()
    assert (window["verdict"], window["revision"]) == ("incomplete", 1)
    assert {(f["kind"], f["tier"]) for f in window["findings"]} == {
        ("missing", "dc1"),
        ("missing", "offline"),
        ("missing", "warehouse"),
    }
    assert audit.answer()["watermark"] is None, "the watermark goes back with the verdict"
    late = found((10, 11))
    audit.apply(count("dc1", 900, 950, late), count("offline", 900, 950, late), load(2, late))
    assert (audit.window()["verdict"], audit.window()["revision"]) == ("complete", 1)


def test_a_second_producer_of_a_time_that_was_final_raises_the_revision(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    audit.apply(hello(2, "dc2"))
    assert (audit.window()["verdict"], audit.window()["revision"]) == ("unknown", 0)
    audit.apply(report(0, (0, 3), instance=2, cluster="dc2"))
    assert audit.window()["revision"] == 1


def test_a_report_of_a_time_that_was_final_and_empty_begins_at_revision_one(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    assert audit.window(W + WINDOW_MS)["verdict"] == "complete"
    audit.apply(report(1, (10, 11), window=W + WINDOW_MS))
    assert audit.window(W + WINDOW_MS)["revision"] == 1


def test_an_event_before_the_instances_own_promise_is_late(audit: Audit) -> None:
    audit.apply(hello(), report(0, (0, 3), closed=W + WINDOW_MS), report(1, (4, 4), closed=W + WINDOW_MS))
    assert audit.window()["revision"] == 1


def test_a_duplicate_that_turns_up_after_the_verdict_raises_the_revision(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    audit.apply(load(2, found((3, 3))))
    window = audit.window()
    assert (window["verdict"], window["revision"]) == ("incomplete", 1)
    assert [(f["kind"], f["tier"], f["sequences"]) for f in window["findings"]] == [
        ("duplicate", "warehouse", [[3, 3]])
    ]


def test_a_load_after_the_window_is_final_is_no_revision(audit: Audit) -> None:
    audit.apply(
        *[record for record in WHOLE if not (isinstance(record, Count) and record.tier == "warehouse")]
    )
    audit.settle()
    assert audit.window()["verdict"] == "incomplete"
    audit.apply(load(1, found((0, 9))))
    assert (audit.window()["verdict"], audit.window()["revision"]) == ("complete", 0)


def test_an_instance_that_has_ended_is_no_longer_listed_and_still_judged(audit: Audit) -> None:
    def listed() -> list[int]:
        with audit.store.reading() as session:
            return [one.instance for topic in answers.topics(session, RULES) for one in topic.instances]

    audit.apply(hello(), report(1, (5, 9)), *WHOLE[2:])
    assert listed() == [1], "report 0 is missing"
    audit.apply(report(0, (0, 4)))
    assert listed() == []
    assert audit.window()["verdict"] == "complete"
    audit.apply(load(2, found((10, 10))))
    assert [(f["kind"], f["server"]) for f in audit.window()["findings"]] == [("unexpected", "web-1")]


def test_the_watermark_never_jumps_over_a_window_that_is_not_complete(audit: Audit) -> None:
    audit.apply(hello(), *BEATS)
    everywhere = SequenceCounts()
    for index in (0, 1, 3):
        audit.apply(report(index, (index, index), window=W + index * WINDOW_MS))
        if index != 1:
            everywhere.merge(found((index, index), window=W + index * WINDOW_MS))
    audit.apply(report(2))
    audit.apply(count("dc1", 0, 9, everywhere), count("offline", 0, 9, everywhere), load(1, everywhere))
    answer = audit.answer(windows=4)
    assert [window["verdict"] for window in answer["windows"]] == [
        "complete",
        "incomplete",
        "complete",
        "complete",
    ]
    assert answer["verdict"] == "incomplete"
    assert answer["watermark"] == "2015-05-17T10:10:00Z"


def test_a_reader_whose_clock_runs_ahead_makes_nothing_final_that_is_not_over(audit: Audit) -> None:
    now = time.time_ns() // 1_000_000
    future = now - now % WINDOW_MS + WINDOW_MS
    year = 365 * 24 * 3600 * 1000
    audit.apply(*WHOLE, *(heartbeat(tier, time=now + year) for tier in ("dc1", "dc2", "offline")))
    assert audit.answer()["verdict"] == "complete"
    assert audit.window(future)["verdict"] == "unknown"
    assert audit.answer()["watermark"] < iso(now)
    audit.apply(*BEATS)
    assert audit.window(W + 20 * WINDOW_MS)["verdict"] == "unknown", "the clock was set right: that counts"


def test_a_topic_that_no_audited_producer_sends_is_unknown_never_complete(audit: Audit) -> None:
    source = OffsetRange(reader=100, cluster="dc1", topic_id="ab", partition=0, start=0, end=9)
    plain = Count(time=1, tier="dc1", topic=TOPIC, source=source, foreign=3, counts=SequenceCounts())
    audit.apply(plain, *BEATS)
    audit.settle()
    answer = audit.answer()
    assert (answer["verdict"], answer["watermark"]) == ("unknown", None)
    assert answer["windows"][0]["reasons"] == ["no audited producer has announced itself for topic PageView"]
    audit.apply(*WHOLE[:2], count("dc1", 9, 900, found((0, 9))), *WHOLE[3:])
    assert (audit.window()["verdict"], audit.window()["revision"]) == ("complete", 0)


def beat_at(offset: int, time: int = NOW) -> Heartbeat:
    at = ReaderPosition(TOPIC, "ab", 0, offset)
    return Heartbeat(time=time, cluster="dc1", tier="dc1", reader=100, positions=[at])


def test_counts_that_expired_unread_leave_a_doubt_and_do_not_stop_the_audit(audit: Audit) -> None:
    audit.apply(*WHOLE[:2], *WHOLE[3:], count("dc1", 0, 500, found((0, 4))))
    audit.apply(beat_at(900))  # the count of 500 to 900 had expired
    window = audit.window()
    assert (window["verdict"], window["findings"]) == ("unknown", [])
    assert window["reasons"] == [
        "offsets 500 to 900 of partition 0 were never counted in full at tier dc1:"
        " messages or counts had expired by 2015-05-17T11:40:00Z"
    ]
    assert audit.answer()["watermark"] is None
    later = NOW + WINDOW_MS
    audit.apply(
        report(1, (10, 19), window=NOW),
        count("dc1", 900, 950, found((10, 19), window=NOW)),
        count("offline", 900, 950, found((10, 19), window=NOW)),
        load(2, found((10, 19), window=NOW)),
        *(heartbeat(tier, time=later + 60_000) for tier in ("dc1", "dc2", "offline")),
    )
    assert audit.window(NOW)["verdict"] == "complete", "what happened after the gap is not in it"


def test_messages_that_expired_uncounted_leave_a_doubt_on_what_was_not_final_yet(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    second = NOW - WINDOW_MS
    news = found((10, 19), window=second)
    audit.apply(
        report(1, (10, 19), window=second),
        count("offline", 900, 950, news),
        load(2, news),
        replace(count("dc1", 900, 1900, news), expired=300),
        *(heartbeat(tier, time=NOW + 60_000) for tier in ("dc1", "dc2", "offline")),
    )
    assert audit.window(second)["verdict"] == "unknown"
    assert audit.window()["verdict"] == "complete"
    audit.apply(load(3, found((11, 11), window=second)))
    assert audit.window(second)["verdict"] == "incomplete", "what is found for certain is said"


def test_foreign_messages_are_counted_beside(audit: Audit) -> None:
    source = OffsetRange(reader=100, cluster="dc1", topic_id="ab", partition=0, start=0, end=9)
    for _ in range(2):
        audit.apply(Count(time=1, tier="dc1", topic=TOPIC, source=source, foreign=3, counts=SequenceCounts()))
    assert audit.answer()["foreign"] == {"dc1": 3}


def edition(number: int, counts: SequenceCounts, before: SequenceCounts) -> Count:
    return replace(
        load(1, counts.without(before)), source=LoadNumber(1, number), removed=before.without(counts)
    )


def test_a_later_edition_of_a_load_takes_the_place_of_the_one_before_however_often_it_is_told(
    audit: Audit,
) -> None:
    less, other = found((0, 3), (3, 3), (7, 9)), found((20, 21), window=W + WINDOW_MS)
    audit.apply(
        *[record for record in WHOLE if not (isinstance(record, Count) and record.tier == "warehouse")]
    )
    first, second, third = load(1, less), edition(2, other, less), edition(3, found((0, 9)), other)
    audit.apply(first, third)
    assert audit.window()["verdict"] == "incomplete", "an edition says nothing without the one before"
    audit.apply(first, second, second, first)
    assert [each["kind"] for each in audit.window()["findings"]] == ["missing"]
    audit.apply(first, second, third, third, second, first)
    assert audit.window()["verdict"] == "complete"
    assert audit.answer(W + WINDOW_MS)["verdict"] == "complete"


def test_an_edition_that_loses_something_raises_the_revision_of_a_complete_window(audit: Audit) -> None:
    audit.apply(*WHOLE)
    audit.settle()
    audit.apply(edition(2, found((0, 8)), found((0, 9))))
    window = audit.window()
    assert (window["verdict"], window["revision"]) == ("incomplete", 1)
    assert window["findings"][0]["sequences"] == [[9, 9]]


def producers(count: int, first: int = 0) -> SequenceCounts:
    """Counts of many producers with long names in two windows; each has sequence 5 twice."""
    counts = SequenceCounts()
    for number in range(count):
        for window in (W, W + WINDOW_MS):
            counts.add(f"web-{number:06d}.example.org", "shop", number, window, first, 9)
            counts.add(f"web-{number:06d}.example.org", "shop", number, window, 5, 5)
    return counts


def held(audit: Audit) -> SequenceCounts:
    with audit.store.reading() as session:
        return SequenceCounts.from_json(
            {
                "server": row.server,
                "service": row.service,
                "instance": row.instance,
                "window": row.window,
                "ranges": row.ranges,
                "duplicates": (),
            }
            for row in session.scalars(select(CountedRow))
        )


def test_a_load_of_very_many_producers_is_told_in_messages_any_broker_takes_and_counts_once(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.reports.publish.PART_BYTES", 4000)
    codec = AuditCodec(Ids())
    first, second = producers(60), producers(70, first=2)
    parts = edition_records(TOPIC, 1, 1, SequenceCounts(), first)
    later = edition_records(TOPIC, 1, 2, first, second)
    assert min(len(parts), len(later)) > 2
    assert max(len(codec.encode(part)) for part in [*parts, *later]) <= 4000
    audit.apply(parts[1])
    assert not held(audit).total, "a part says nothing without the one before"
    audit.apply(*parts[:2])  # whoever told it was cut off here, and begins again
    audit.apply(*later)
    audit.apply(*parts)
    assert held(audit) == first
    audit.apply(*parts, *later[:1], *parts, *later, *later)
    assert {key: tally for key, tally in held(audit).tallies.items() if tally.total} == second.tallies


def test_a_producer_with_more_holes_than_a_message_takes_is_told_in_parts(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.reports.publish.PART_BYTES", 1000)
    holes = found(*((each, each) for each in range(0, 1000, 2)), (4, 4))
    parts = edition_records(TOPIC, 1, 1, SequenceCounts(), holes)
    assert max(len(AuditCodec(Ids()).encode(part)) for part in parts) <= 1000
    audit.apply(*parts, *parts)
    assert held(audit) == holes


def test_a_load_without_a_producer_is_told_too() -> None:
    (count,) = edition_records(TOPIC, 1, 1, SequenceCounts(), SequenceCounts())
    assert count.source == LoadNumber(1)


def test_the_last_window_before_the_year_10000_is_one_that_a_client_can_read(audit: Audit) -> None:
    last = window_start(LAST_MS)
    audit.apply(hello(), report(0, (0, 0), window=last))
    with audit.store.reading() as session:
        answer = to_json(answers.completeness(session, RULES, TOPIC, last, LAST_MS))
    (window,) = Completeness.from_json(answer).windows
    assert window.start == datetime(9999, 12, 31, 23, 50, tzinfo=UTC)
    assert window.end == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
