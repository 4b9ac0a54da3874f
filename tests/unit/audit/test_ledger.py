"""From records to verdicts, on a real database: what counts, what does not, and what is concluded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from millrace_audit.answer import iso
from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.judging import topic_facts
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.batch import Entry
from millrace_audit.auditor.records.progress import Checkpoint, Checkpoints
from millrace_audit.auditor.records.reported import MOST_RANGES
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import (
    AuditStore,
    CheckpointRow,
    EndsRow,
    LostReportsRow,
    ProducerRow,
    TierRow,
    WindowRow,
)
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import (
    FOR_EVER,
    MOST_WINDOWS,
    NOTHING,
    ForeignCount,
    Heartbeat,
    HourRows,
    LoadCount,
    LoadEnd,
    LoadNumber,
    Origin,
    OtherVersion,
    ReaderPosition,
    ReportedWindow,
    Truncated,
    UnkeyedRows,
    Unreadable,
)
from millrace_audit.reports.publish import edition_records
from millrace_audit.reports.ranges import Range, SequenceRanges
from millrace_audit.reports.seals import seal_of
from tests.support import ROUNDS
from tests.unit.audit.story import COUNTED, NOW, OPTIONS, OWN, SAID, STEP, TOPIC, Story, W, found

LATER = W + 20 * WINDOW_MS


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> Story:
    """An empty store, in SQLite and in PostgreSQL."""
    if request.param == "postgresql":
        return Story(stores(request.getfixturevalue("postgres_url")))
    return Story(stores("sqlite://"))


@pytest.fixture
def quick(stores: Callable[[str], AuditStore]) -> Story:
    return Story(stores("sqlite://"))


def test_a_whole_story_is_complete_and_moves_the_watermark(story: Story) -> None:
    story.whole()
    answer = story.apply().answer(windows=2)
    assert answer["verdict"] == "complete", answer
    assert [window["verdict"] for window in answer["windows"]] == ["complete", "complete"]
    assert answer["windows"][0]["tiers"] == {"dc1": 10, "offline": 10, "warehouse": 10}
    assert answer["watermark"] == "2015-05-17T11:30:00Z"


def test_records_that_come_again_count_once(story: Story) -> None:
    story.whole()
    for key, there in list(story.partitions.items()):
        for heard in list(there):
            story.say(*key, heard.record, heard.turn)
            story.partitions[key][-1] = story.partitions[key][-1]._replace(value=heard.value)
    assert story.apply().verdict() == "complete"
    assert story.rejected_records() == [("Hello", "its instance has ended")], (
        "a hello behind the end is no repeat"
    )


def everything(story: Story) -> list[object]:
    """Return all conclusions without revisions, which depend on how the auditor came to them."""
    answer = story.completeness(W - 2 * WINDOW_MS, 14)
    other = story.completeness(W, 1, "Other")
    windows = [replace(window, revision=0) for window in (*answer.windows, *other.windows)]
    return [windows, answer.watermark, answer.held_by, other.watermark, story.rejected_records()]


def troubled(story: Story) -> None:
    """A story in which much goes wrong."""
    dice = random.Random(5)
    story.beats(W - WINDOW_MS)
    story.whole()
    for instance in range(2, 8):
        cluster = dice.choice(["dc1", "dc2"])
        story.hello(instance, cluster)
        for number in range(4):
            window = W + dice.randrange(4) * WINDOW_MS
            first = 100 * number
            there = (
                [(first, first + 9)] if dice.random() < 0.8 else [(first, first + 5), (first + 4, first + 9)]
            )
            lost = dice.random() < 0.2
            closed = FOR_EVER if number == 3 else window
            failed = ((first + 10, first + 11),) if dice.random() < 0.3 else ()
            if number != 2 or instance != 4:  # one report is missing
                story.report(
                    number,
                    (first, first + 9),
                    instance=instance,
                    window=window,
                    closed=closed,
                    cluster=cluster,
                    failed=failed,
                )
            here = found(*there, *failed, instance=instance, window=window)
            story.count(cluster, here, cluster=cluster, partition=number % 2)
            rest = here if not lost else found((first, first + 3), instance=instance, window=window)
            story.count("offline", rest, cluster=cluster, partition=number % 2)
            if dice.random() < 0.8:
                story.load(rest)
            if dice.random() < 0.5:
                story.beat(cluster, W + dice.randrange(8) * WINDOW_MS)
                story.beat("offline", W + dice.randrange(8) * WINDOW_MS)
    story.carry(found((0, 5), instance=99, server="nobody"))
    story.count("dc2", SequenceCounts(), cluster="dc2", foreign=[ForeignCount(W, 7, 5)])
    story.count("offline", SequenceCounts(), cluster="dc2", foreign=[ForeignCount(W, 6, 5)])
    story.count("dc1", found((0, 3), instance=50), topic="Other", partition=7)
    story.count("offline", found((0, 3), instance=50), topic="Other", partition=7)
    story.report(5, (7, 7), instance=2, cluster="dc1")
    story.beat("dc1", turn=0)
    story.count("dc1", found((70, 79)), turn=0)
    story.ends["dc1", "dc1", 0] -= STEP
    story.beats()
    story.beats(NOW + 6000)
    first = story.ends["dc1", "dc1", 0]
    story.count("dc1", found((200, 204), instance=3), expired=SequenceRanges([(first, first + 9)]))
    story.hello(30)
    story.report(0, (0, 9), instance=30)
    story.report(5, (0, 99), instance=3, cluster="dc2")
    story.beat(
        "dc2", NOW + 12_000, unreadable=[Unreadable(TOPIC, "dc2-PageView", 0, 700, "the batch is damaged")]
    )
    story.count("offline", found((0, 4), instance=30), foreign=[ForeignCount(W + WINDOW_MS, 2, 5)])
    story.load(found((0, 4), instance=30))
    story.count("dc1", found((0, 6), instance=30))
    story.beats(NOW + 18_000)
    story.beat("dc1", NOW - 5 * WINDOW_MS)
    story.beat("dc1", NOW + 24_000, positions=[ReaderPosition("Other", "dc1-Other", 7, None)])
    story.beats(NOW + 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3 * ROUNDS))
def test_the_order_between_partitions_does_not_matter_nor_where_the_database_began(
    quick: Story, seed: int
) -> None:
    troubled(quick)
    expected = everything(quick.apply())
    verdicts = {window.verdict for window in expected[0]}  # type: ignore[attr-defined]
    assert {"incomplete", "unknown"} <= verdicts
    store = AuditStore("sqlite://")
    assert everything(quick.interleaved(store, random.Random(seed))) == expected
    store.close()


def test_nothing_is_over_before_what_was_said_by_then_is_applied(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    quick.carry(found((0, 9)))
    for tier in ("dc1", "dc2", "offline"):
        quick.beat(tier)
    # The mirror of `audit` lags behind that of `audit-counts`: a hello and two reports are at 200 to 500.
    quick.beat("dc1", NOW + 6000, through=500)
    quick.beat("dc2", NOW + 6000)
    quick.apply()
    assert [quick.verdict(), quick.verdict(W + WINDOW_MS)] == ["pending", "pending"]
    assert quick.window()["reasons"] == ["reports from dc1 are still read"]
    assert quick.answer()["watermark"] is None
    quick.hello(2)
    quick.report(0, (0, 4), instance=2, closed=NOTHING)
    quick.report(1, (5, 9), instance=2, window=W + WINDOW_MS)
    quick.beat("dc1", NOW + 12000)
    quick.apply()
    assert [quick.verdict(), quick.verdict(W + WINDOW_MS)] == ["incomplete", "incomplete"]


def test_a_topic_nobody_has_spoken_of_is_unknown_never_complete(story: Story) -> None:
    answer = story.answer()
    assert (answer["verdict"], answer["watermark"]) == ("unknown", None)
    assert "no producer and no reader has named topic" in answer["windows"][0]["reasons"][0]


# Whom it trusts: every record here is one that whoever may produce to an audit topic can write.


def test_a_reader_of_another_cluster_cannot_speak_for_a_tier(story: Story) -> None:
    story.whole()
    story.apply()
    before = story.answer()
    # A reader started with the wrong --cluster: its counts and heartbeats name a tier that is not its place.
    record = story.partitions["audit-counts", "dc1"][0].record
    for turn in (None, 1, 9):
        story.say("audit-counts", "dc2", record, turn)
    story.say("audit-counts", "dc2", Heartbeat(time=NOW, tier="dc1"), 9)
    assert story.apply().answer() == before
    causes = {cause for _, cause in story.rejected_records()}
    assert causes == {"it does not belong among those of dc2", "no reader of the tier has signed it"}


def test_counts_that_no_reader_has_signed_have_no_effect(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 8)))
    story.count("offline", found((0, 8)))
    story.load(found((0, 8)))
    story.beats()
    assert story.apply().findings() == [("missing", "dc1", [[9, 9]])]
    story.count("dc1", found((9, 9)), turn=None)
    story.count("offline", found((9, 9)), turn=None)
    story.load(found((9, 9)))
    assert story.apply().findings()[0] == ("missing", "dc1", [[9, 9]]), "a forged load does not find it, too"
    assert story.verdict() == "incomplete"


def test_a_count_for_the_warehouse_is_no_offset_range_and_a_load_counts_for_no_other_tier(
    story: Story,
) -> None:
    story.whole()
    record = replace(story.partitions[OWN, "offline"][0].record, tier="warehouse")  # type: ignore[type-var]
    story.say(OWN, "offline", record, 1)
    story.say("audit-counts", "dc1", story.partitions[OWN, "offline"][1].record, 1)
    story.say(SAID, "dc1", story.partitions[OWN, "offline"][0].record, 1)
    assert story.apply().verdict() == "complete"
    assert len(story.rejected_records()) == 3


def test_producers_cannot_count_and_readers_cannot_report(story: Story) -> None:
    story.whole()
    story.say(SAID, "dc1", story.partitions["audit-counts", "dc1"][0].record, 1)
    story.say("audit-counts", "dc1", story.partitions[SAID, "dc1"][1].record, 1)
    story.say(SAID, "dc1", None)
    assert story.apply().verdict() == "complete"
    assert {cause for _, cause in story.rejected_records()} == {"no audit record that belongs here"}


def test_a_reader_whose_turn_is_over_is_not_listened_to(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 4)), turn=1)
    story.beat("dc1", NOTHING, turn=2)
    end = story.ends["dc1", "dc1", 0]
    story.count("dc1", found((0, 9)), turn=1, start=end, end=end + STEP)
    story.ends["dc1", "dc1", 0] = end
    story.beat("dc1", LATER, turn=1)
    story.carry(found((5, 9)), turn=2)
    for time in (NOW, NOW + 6000):
        story.beat("dc1", time, turn=2)
        story.beat("dc2", time)
        story.beat("offline", time, turn=2)
    assert story.apply().verdict() == "complete", story.window()
    assert {kind for kind, _ in story.rejected_records()} == {"Count", "Heartbeat"}


def test_records_of_another_version_are_said_to_be(story: Story) -> None:
    there = story.partitions[SAID, "dc1"]
    there.append(Entry(None, 0, b"", STEP, kind=OtherVersion))
    cause = "a record of another version of Millrace: upgrade who writes it"
    assert story.apply().rejected_records() == [("OtherVersion", cause)]


def reported(windows: int, ranges: int = 1) -> list[ReportedWindow]:
    numbers = SequenceRanges((2 * n, 2 * n) for n in range(ranges))
    return [ReportedWindow(TOPIC, W - n * WINDOW_MS, numbers, SequenceRanges()) for n in range(windows)]


@pytest.mark.parametrize(
    "windows", [reported(MOST_WINDOWS + 1), reported(1, MOST_RANGES + 1)], ids=["windows", "ranges"]
)
def test_a_report_of_too_much_does_not_count_and_is_missed(
    quick: Story, windows: list[ReportedWindow]
) -> None:
    quick.hello()
    quick.report(0, windows=windows)
    quick.report(1)
    quick.beats()
    assert quick.apply().window()["acknowledged"] == 0
    assert quick.rejected_records()[0][1].startswith("a report of more than")
    assert quick.verdict() == "unknown"


def test_a_report_of_as_much_as_is_allowed_counts(quick: Story) -> None:
    quick.hello()
    quick.report(0, windows=[*reported(1, MOST_RANGES - MOST_WINDOWS), *reported(MOST_WINDOWS)[1:]])
    assert quick.apply().answer(W - WINDOW_MS, 2)["windows"][1]["acknowledged"] == MOST_RANGES - MOST_WINDOWS
    assert quick.rejected_records() == []


def test_of_a_window_of_too_many_ranges_nothing_is_kept_and_it_is_never_complete(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.auditor.verdict.evidence.MOST_RANGES_KEPT", 100)
    quick.whole()
    quick.hello(2)
    quick.report(0, instance=2, windows=reported(1, 101))
    quick.beats(NOW + 6000)
    window = quick.apply().window()
    assert (window["verdict"], window["acknowledged"]) == ("unknown", 0)
    assert "ranges of sequences were reported or counted in it" in window["reasons"][0]
    quick.count("dc1", found((0, 4), instance=3))
    quick.beats(NOW + 12_000)
    assert quick.apply().verdict() == "unknown", "for good"
    assert quick.verdict(W + WINDOW_MS) == "complete"


def test_topics_that_nobody_counts_are_judged_only_as_long_as_they_are_few(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_facts, "MOST_UNCOUNTED", 5)
    for n in range(20):
        quick.hello(1000 + n, topic=f"A{n:02}")
        quick.report(0, (0, 9), instance=1000 + n, topic=f"A{n:02}")
    quick.whole()
    quick.apply()
    with quick.store.reading() as session:
        assert [one.topic for one in answers.topics(session, OPTIONS)] == [
            *(f"A0{n}" for n in range(5)),
            TOPIC,
        ]
        assert {bad.topic for bad in answers.bad(session, OPTIONS, None, 100)} == {f"A0{n}" for n in range(5)}
    assert quick.verdict() == "complete"
    assert quick.verdict(topic="A04") == "unknown", "it was reported, and nobody counts it"
    assert quick.verdict(topic="A05") == "pending"
    quick.count("dc1", found((0, 9), instance=1005), topic="A05", partition=7)
    quick.beats(NOW + 6000)
    assert quick.apply().window(topic="A05")["acknowledged"] == 10, "a reader names it"


def known_producers(story: Story) -> list[tuple[str, int]]:
    with story.store.reading() as session:
        names = select(ProducerRow.origin, ProducerRow.instance).order_by(ProducerRow.producer)
        return [(origin, instance) for origin, instance in session.execute(names)]


def test_an_instance_that_ended_is_forgotten_with_the_last_of_its_windows(story: Story) -> None:
    later, days = W + WINDOW_MS, 24 * 3_600_000
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=later, closed=later)  # has not ended
    story.hello(3, topic="Other")
    story.report(0, (0, 4), instance=3, topic="Other", window=later)  # is incomplete, which is kept
    story.count("dc1", found((0, 4), instance=4, window=later), topic="Other", partition=1)  # beside it
    story.hello(5, topic="Nobody's", time=1 << 60)
    story.report(0, (0, 4), instance=5, topic="Nobody's", window=W + 100_000 * WINDOW_MS, time=1 << 60)
    story.hello(6)
    story.report(0, instance=6)  # no events
    story.beats()
    story.beats(NOW + 6000)
    story.apply()
    assert len(known_producers(story)) == 7
    for now, kept in ((NOW + 89 * days, 7), (NOW + 92 * days, 3)):
        story.options = replace(OPTIONS, clock_ms=lambda now=now: now)  # type: ignore[misc]
        with story.store.writing() as session:
            expire(session, story.options)
        assert len(known_producers(story)) == kept
    assert known_producers(story) == [("dc1", 2), ("dc1", 3), ("dc1", 4)]
    with story.store.reading() as session:
        assert [one.topic for one in answers.topics(session, story.options)] == ["Other", TOPIC]
    assert [f["kind"] for f in story.window(later, topic="Other")["findings"]] == ["missing"]
    story.count("offline", found((0, 4), instance=3, window=later), topic="Other")
    story.beats(NOW + 92 * days)
    assert story.apply().window(later, topic="Other")["tiers"]["offline"] == 5, "it can still be judged"


def test_turns_that_begin_at_0_again_are_said_to_be_over(story: Story) -> None:
    story.carry(found((0, 1)), turn=7)
    story.beat("dc1", turn=7)
    story.beat("dc1", NOW + 6000, turn=0)
    ((kind, cause),) = story.apply().rejected_records()
    assert kind == "Heartbeat"
    assert "if ZooKeeper was made anew, give the auditor an empty database" in cause


def test_a_heartbeat_that_somebody_sends_again_does_not_set_a_tier_back(quick: Story) -> None:
    quick.beat("dc1", W)
    there = quick.partitions[COUNTED, "dc1"]
    quick.whole()
    there.append(there[0]._replace(offset=len(there) * STEP))
    assert quick.apply().verdict(W + WINDOW_MS) == "complete"
    quick.beat("dc1", W, turn=2)
    quick.apply()
    with quick.store.reading() as session:
        assert answers.heartbeats(session)["dc1"] == W, (
            "the next reader begins with 1, whatever its clock says"
        )


def test_a_count_of_a_partition_that_went_is_no_news_when_somebody_sends_it_again(quick: Story) -> None:
    quick.whole()
    gone = ReaderPosition(TOPIC, "dc1-PageView", 0, None)
    quick.beat("dc1", NOW + 6000, positions=[gone])
    assert quick.apply().verdict() == "complete"
    quick.say(COUNTED, "dc1", quick.partitions[COUNTED, "dc1"][0].record, 1)
    quick.beats(NOW + 12000)
    assert quick.apply().verdict() == "complete", quick.window()


def test_a_partition_that_a_listing_lacked_is_counted_on(quick: Story) -> None:
    quick.whole()
    quick.beat("dc1", NOW + 6000, positions=[ReaderPosition(TOPIC, "dc1-PageView", 0, None)])
    quick.apply()
    quick.hello(2)
    quick.report(0, (0, 4), instance=2)
    quick.carry(found((0, 4), instance=2))
    quick.beats(NOW + 12_000)
    assert quick.apply().verdict() == "complete", quick.window()
    quick.count("dc1", found((5, 5), instance=2))
    quick.beats(NOW + 18_000)
    assert quick.apply().verdict() == "incomplete", "it is there again: what it has is to be mirrored"


def test_a_report_in_the_name_of_an_instance_that_has_ended_changes_nothing(story: Story) -> None:
    story.whole()
    before = story.apply().answer()
    for number in (1, 2, 10**9):
        story.report(number, (0, 99), server="evil", service="evil")
        story.report(number, (0, 99), closed=NOTHING)
    story.hello(server="evil")
    story.hello(topic="Other")
    assert story.apply().answer() == before
    assert len(story.rejected_records()) >= 3
    assert story.answer(topic="Other")["verdict"] == "unknown", "the topic was not even made"


def test_a_report_without_the_key_of_the_seal_has_no_effect(story: Story) -> None:
    story.hello()
    story.report(0, (0, 99), key=b"guessed".ljust(16))
    story.report(2000, (0, 99))
    story.report(0, (0, 9), closed=W)
    story.report(0, (0, 99), closed=W)
    story.report(1, closed=FOR_EVER)
    story.carry(found((0, 9)))
    story.beats()
    assert story.apply().verdict() == "complete", story.window()
    assert [cause for _, cause in story.rejected_records()] == [
        "another report with its number has come before",
        "it is more than 1000 reports ahead",
        "its key does not fit the seal of what was said before",
    ]


def test_a_hello_with_another_seal_neither_joins_a_topic_nor_closes_anything(story: Story) -> None:
    story.hello()
    story.hello(topic="Other", seal=b"x" * 32)
    story.hello(closed=FOR_EVER)
    story.beats()
    story.apply()
    assert story.answer(topic="Other")["windows"][0]["reasons"] == [
        "no producer and no reader has named topic Other: `millrace topics list`"
    ]
    assert "has closed nothing" in story.window()["reasons"][0]


def test_a_report_without_a_hello_is_a_strangers(story: Story) -> None:
    story.whole()
    story.report(0, (0, 9), instance=7)
    story.report(3, (0, 9), instance=8)
    assert story.apply().verdict() == "complete"
    assert set(story.rejected_records()) == {("Report", "its instance has not said hello")}


def test_a_word_in_the_log_of_another_cluster_is_a_strangers(story: Story) -> None:
    story.whole()
    story.hello(5, "dc9", at="dc2")
    assert story.apply().verdict() == "complete"
    assert story.rejected_records() == [("Hello", "it says cluster dc9 and speaks in that of dc2")]


def test_a_word_without_a_cluster_is_of_the_cluster_in_whose_log_it_is(story: Story) -> None:
    story.whole()
    story.hello(1, "", at="dc2")
    story.report(0, (0, 3), cluster="", at="dc2")
    story.carry(found((0, 3)), "dc2")
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "complete"
    assert story.rejected_records() == []
    assert story.window()["acknowledged"] == 14


def test_the_same_number_in_two_clusters_is_two_instances(story: Story) -> None:
    story.whole()
    story.hello(1, "dc2")
    story.report(0, (0, 3), cluster="dc2")
    story.carry(found((0, 3)), "dc2")
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "complete", story.window()
    assert story.window()["acknowledged"] == 14


def test_events_that_something_copied_into_a_second_cluster_are_at_two_homes(story: Story) -> None:
    story.whole()
    assert story.apply().verdict() == "complete"
    story.carry(found((5, 9)), "dc2")
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "pending", "a producer of dc2 may have reported them"
    story.beats(NOW + 12_000)
    window = story.apply().window()
    assert window["verdict"] == "incomplete"
    assert window["reasons"][0].startswith("5 events are at dc1 and at dc2 (instance 1 (shop on web-1),")


def test_hundreds_of_hellos_of_nobody_are_accepted_in_one_go(story: Story) -> None:
    for instance in range(100, 300):
        story.hello(instance, server="evil", service="evil", time=NOW)
    story.whole()
    assert story.apply().verdict() == "pending"
    assert len(story.accept(service="evil")) == 200
    story.settle()
    assert story.verdict() == "complete"
    assert "accepted: burnt down" in story.window()["reasons"][0]


def test_acceptance_of_a_service_can_stop_at_a_server_and_a_time(story: Story) -> None:
    for instance, server, time in ((1, "a", W), (2, "a", NOW), (3, "b", W)):
        story.hello(instance, server=server, time=time)
    story.apply()
    assert story.accept(service="shop", server="a", before=NOW) == [1]
    assert story.accept(service="other") == []
    assert story.accept(service="shop") == [2, 3], "the first one is accepted already"


def test_an_instance_that_only_said_hello_holds_nothing_up_for_ever(story: Story) -> None:
    story.hello(2, time=NOW)
    story.whole()
    assert story.apply().verdict() == "pending"
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.beats(NOW + 590_000)
    assert story.apply().verdict() == "pending"
    story.beats(NOW + 606_000)
    assert story.apply().verdict() == "complete"
    story.report(0, (0, 4), instance=2, closed=W)
    assert story.apply().verdict() != "complete", "it has spoken: it is awaited again"


def test_an_idle_instance_of_which_an_event_was_counted_is_awaited(story: Story) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.hello(2)
    story.beats(W)
    story.carry(found((0, 4), instance=2))
    story.beats(LATER)
    window = story.apply().window()
    assert window["verdict"] == "unknown"
    assert "has closed nothing; its last report came at" in window["reasons"][0]
    assert "reported nothing here, and 5 events are counted that it never reported" in window["reasons"][1]


def test_an_event_of_an_impossible_time_touches_nobody_elses_windows(story: Story) -> None:
    story.whole()
    before = story.apply().window()
    for window in (0, W + 10 * 365 * 144 * WINDOW_MS):
        story.carry(found((0, 0), instance=9, window=window))
    story.count("dc1", SequenceCounts(), foreign=[ForeignCount(0, 1, 1)])
    story.beats(NOW + 6000)
    assert story.apply().window() == before
    assert set(story.rejected_records()) == {
        ("Count", f"events of topic {TOPIC} have a time no producer sends")
    }


def test_a_report_on_a_window_that_nobody_counts_is_a_strangers_and_missing(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9), window=W + 5)
    quick.beats()
    assert quick.apply().verdict() == "unknown", "its word is still awaited"
    assert quick.rejected_records() == [
        ("Report", "a window that does not begin with ten minutes of the clock")
    ]


def test_whether_an_event_counts_does_not_depend_on_the_clocks_of_readers(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.report(0, (0, 9))
    day = 24 * 3_600_000
    foreign = [ForeignCount(W, 5, 5)]
    quick.count("dc1", found((0, 9)), foreign=foreign, time=W - day - 1)
    quick.count("offline", found((0, 9)), foreign=foreign, time=W - day + 1000)
    quick.load(found((0, 9)))
    quick.beats(LATER)
    assert quick.apply().findings() == []


def test_strangers_fill_no_database(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_audit.auditor.records.batch.MOST_REJECTED_RECORDS", 3)
    for instance in range(9):
        story.report(0, instance=instance)
    story.apply()
    with story.store.reading() as session:
        rows = answers.rejected_records(session)
    assert sorted(row["count"] for row in rows) == [1, 1, 1, 6]


def test_more_open_instances_than_any_topic_has_are_strangers(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.auditor.records.reported.MOST_OPEN", 3)
    for instance in range(1, 6):
        story.hello(instance)
    story.report(0, (0, 1), instance=2)
    story.hello(6)
    story.apply()
    assert set(story.rejected_records()) == {("Hello", "more than 3 instances are open")}
    assert story.verdict() == "unknown"
    assert "too many instances of topic PageView are open in dc1" in " ".join(story.window()["reasons"])
    with story.store.reading() as session:
        (topic,) = answers.topics(session, OPTIONS)
    assert [instance.instance for instance in topic.instances] == [1, 3, 6], "one has ended meanwhile"


def test_hellos_of_nobody_make_what_is_not_heard_unknown_until_they_are_accepted(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.auditor.records.reported.MOST_OPEN", 10)
    quick.carry(SequenceCounts())
    quick.beats(W - 10 * WINDOW_MS)
    for instance in range(100, 110):
        quick.hello(instance, server="evil", service="evil", time=W - 6 * WINDOW_MS)
    quick.beats(W - 5 * WINDOW_MS)
    quick.apply()
    quick.hello()
    quick.report(0, (0, 9))
    quick.beats()
    quick.beats(NOW + 6000)
    assert quick.apply().verdict() == "unknown", "ten acknowledged events are nowhere"
    assert quick.verdict(W - 8 * WINDOW_MS) == "complete", "before that everybody was heard"
    quick.accept(service="evil")
    quick.hello(2)
    quick.report(0, (0, 9), instance=2)
    quick.beats(NOW + 12_000)
    assert quick.apply().verdict() == "incomplete"


def test_what_strangers_call_themselves_fits_any_database(story: Story) -> None:
    story.whole()
    counts = SequenceCounts()
    counts.add("web\0" + "x" * 3000, "\0", 9, W, 0, 2)
    story.carry(counts)
    story.say("audit-counts", "dc1", Heartbeat(time=NOW, tier="\0" * 500), 1)
    story.beats(NOW + 6000)
    story.beats(NOW + 12_000)
    assert story.apply().verdict() == "carried", story.window()


# What is judged.


def test_events_of_an_instance_that_never_said_hello_are_carried(story: Story) -> None:
    story.whole()
    story.carry(found((0, 4), instance=77))
    story.beats(NOW + 6000)
    window = story.apply().window()
    assert window["verdict"] == "pending", "its hello may be on its way"
    assert "dc1 has events that no producer reported; its reports are still read" in window["reasons"]
    story.beats(NOW + 12_000)
    window = story.apply().window()
    assert (window["verdict"], window["acknowledged"], window["carried"]) == ("carried", 10, 5)
    story.count("dc1", found((5, 5), instance=77))
    story.ends["offline", "dc1", 0] += 0
    story.count("offline", SequenceCounts())
    story.load(SequenceCounts())
    story.beats(NOW + 18_000)
    assert story.apply().findings() == [("missing", "offline", [[5, 5]])]


def test_a_topic_of_plain_producers_is_carried_and_has_a_watermark(story: Story) -> None:
    foreign = [ForeignCount(W, 200, 12345)]
    story.count("dc1", SequenceCounts(), foreign=foreign)
    story.count("offline", SequenceCounts(), foreign=foreign)
    story.load(SequenceCounts())
    story.beats()
    answer = story.apply().answer(windows=2)
    assert [window["verdict"] for window in answer["windows"]] == ["carried", "carried"]
    there = {"dc1": 200, "offline": 200, "warehouse": 200}
    assert answer["windows"][0]["foreign"] == there == answer["foreign"]
    assert answer["watermark"] == "2015-05-17T11:30:00Z"
    assert answer["enough"] == "complete"
    story.options = replace(OPTIONS, carried=f"Search.*|{TOPIC}")
    assert story.completeness(windows=2).proven
    story.options = replace(OPTIONS, carried=TOPIC[:-1])
    assert not story.completeness(windows=2).proven, "the whole name must match"


@pytest.mark.parametrize(
    ("there", "finding"),
    [
        ([ForeignCount(W, 199, 1)], ("missing", "offline", 1)),
        ([ForeignCount(W, 202, 1)], ("duplicate", "offline", 2)),
        ([ForeignCount(W, 200, 1)], ("altered", "offline", 200)),
    ],
)
def test_messages_without_a_header_are_compared_by_number_and_content(
    story: Story, there: list[ForeignCount], finding: tuple[str, str, int]
) -> None:
    story.count("dc1", SequenceCounts(), foreign=[ForeignCount(W, 200, 12345)])
    story.count("offline", SequenceCounts(), foreign=there)
    story.load(SequenceCounts())
    story.beats()
    assert story.apply().findings() == [finding]


def test_a_payload_changed_on_its_way_is_altered_where_it_was_changed_first(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9), content="changed"))
    story.load(found((0, 9)))
    story.beats()
    assert story.apply().findings() == [("altered", "offline", [[0, 9]])]


def test_a_payload_changed_before_the_first_log_is_altered_at_home_only(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9), failed=((10, 11),))
    story.carry(found((0, 11), content="changed"))
    story.beats()
    assert story.apply().findings() == [("altered", "dc1", [[0, 11]])]


def test_of_a_producer_without_fingerprints_content_is_compared_from_the_home_on(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9), fingerprinted=False)
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9), content="changed"))
    story.load(found((0, 9)))
    story.beats()
    assert story.apply().findings() == [("altered", "offline", [[0, 9]])]


def test_of_a_producer_without_fingerprints_a_payload_changed_before_the_first_log_is_not_seen(
    story: Story,
) -> None:
    story.hello()
    story.report(0, (0, 9), failed=((10, 11),), fingerprinted=False)
    story.carry(found((0, 11), content="changed"))
    story.beats()
    assert story.apply().verdict() == "complete"


def test_a_producer_without_fingerprints_hides_no_change_of_anothers_content(story: Story) -> None:
    for instance, fingerprinted in ((1, False), (2, True)):
        story.hello(instance)
        story.report(0, (0, 9), instance=instance, fingerprinted=fingerprinted)
        story.carry(found((0, 9), instance=instance, content="changed"))
    story.beats()
    assert story.apply().findings() == [("altered", "dc1", [[0, 9]])]
    assert story.window()["findings"][0]["instance"] == 2


def test_acknowledged_events_of_aborted_transactions_are_not_missing(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 5)), aborted=found((6, 7)).without_fingerprints())
    story.count("dc1", SequenceCounts(), aborted=found((8, 9)).without_fingerprints(), partition=1)
    story.count("offline", found((0, 5)), aborted=found((3, 5)))  # a mirror's own transaction
    story.count("offline", SequenceCounts(), partition=1)
    story.load(found((0, 5)))
    story.beats()
    assert story.apply().verdict() == "complete"
    assert story.window()["reasons"] == [
        "4 events at dc1 lie in aborted transactions, and no tier may hold them"
    ]


def test_an_aborted_event_behind_the_home_is_unexpected(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 5)), aborted=found((6, 9)).without_fingerprints())
    story.count("offline", found((0, 9)))
    story.load(found((0, 9)))
    story.beats()
    assert story.apply().findings() == [("unexpected", "offline", [[6, 9]])]


def test_one_report_without_a_fingerprint_leaves_the_windows_sum_unknown(story: Story) -> None:
    story.hello()
    story.report(0, (0, 4), closed=NOTHING)
    story.report(1, (5, 9), closed=NOTHING, fingerprinted=False)
    story.report(2, failed=((8, 9),))
    story.carry(found((0, 7)))
    story.beats()
    assert story.apply().verdict() == "complete", "no sum has to be subtracted for a withdrawal"


def test_what_is_on_its_way_is_pending_and_says_where_and_since_when(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.beats()
    window = story.apply().window()
    assert window["verdict"] == "pending"
    assert "offline holds nothing" not in window["reasons"][0]
    assert "the aggregate cluster holds nothing of topic PageView from dc1" in window["reasons"][0]
    story.count("offline", found((0, 4)), size=STEP // 2)
    window = story.apply().window()
    assert (window["verdict"], window["findings"]) == ("pending", [])
    assert "on its way from dc1 to offline since 2015-05-17T11:39:54Z" in window["reasons"][0]
    story.count("offline", found((5, 9)), size=STEP // 2)
    story.beat("offline", NOW + 6000)
    window = story.apply().window()
    assert window["verdict"] == "pending"
    assert "not loaded yet: `millrace load PageView`" in window["reasons"][0]
    story.load(found((0, 9)))
    assert story.apply().verdict() == "complete"


def test_a_tier_that_has_read_past_it_lacks_it_for_good(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 7)))
    story.load(found((0, 6)))
    story.beats()
    assert story.apply().findings() == [("missing", "offline", [[8, 9]]), ("missing", "warehouse", [[7, 7]])]


def test_positions_decide_not_clocks(story: Story) -> None:
    """A producer's clock is two hours ahead: its report is later than every heartbeat, and still judged."""
    story.hello(time=NOW + 12 * WINDOW_MS)
    story.report(0, (0, 9), time=NOW + 12 * WINDOW_MS)
    story.carry(found((0, 9)))
    story.beats()
    assert story.apply().verdict() == "complete"


def test_what_is_only_unread_is_never_missing_though_the_producers_clock_is_behind(story: Story) -> None:
    story.hello(time=W - 12 * WINDOW_MS)
    story.beats()
    story.report(0, (0, 9), time=W - 12 * WINDOW_MS)
    window = story.apply().window()
    assert (window["verdict"], window["findings"]) == ("pending", [])


def test_a_reader_that_stands_makes_unknown_what_waits_for_it_and_says_so(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 9)))
    story.beats(W + WINDOW_MS)
    window = story.apply().window()
    assert window["verdict"] == "unknown"
    assert "the reader of dc1 is stale: it counted through 2015-05-17T10:10:00Z" in window["reasons"][0]


def test_a_missing_report_keeps_the_topic_unknown_and_accepting_goes_on(story: Story) -> None:
    story.hello()
    story.report(0, (0, 4), closed=W)
    story.report(2, (6, 9))
    story.carry(found((0, 9)))
    story.beats()
    window = story.apply().window()
    assert window["verdict"] == "unknown"
    assert "report 1 of instance 1" in window["reasons"][0]
    story.accept(instance=1)
    story.settle()
    window = story.window()
    assert window["verdict"] == "complete"
    assert (
        "5 events are counted that it never reported; they are judged like failed ones"
        in window["reasons"][1]
    ), "whose report 2 was nobody can tell"


def test_a_report_that_somebody_puts_ahead_of_an_instances_own_is_forgotten_with_its_next_one(
    story: Story,
) -> None:
    story.hello()
    story.report(0, (0, 4), closed=W)
    story.report(7, (0, 99), key=b"forged".ljust(16), seal=b"forged".ljust(32))
    story.hello(topic="Other")
    story.beats(W + 2 * WINDOW_MS)
    assert "report 1-6 of instance 1" in story.apply().window()["reasons"][0]
    story.report(8, (0, 99), key=b"forged".ljust(16))
    story.report(1, (5, 9))
    story.carry(found((0, 9)))
    story.beats()
    assert story.apply().verdict() == "complete", story.window()


def test_what_an_instance_sends_to_a_topic_that_it_has_not_announced_is_not_reported(story: Story) -> None:
    story.hello(topic="Other")
    story.carry(found((0, 9)))
    story.report(0, closed=W)
    story.beats()
    assert story.apply().verdict() == "carried", story.window()


def test_a_disowned_instance_is_nobody_from_then_on(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2)
    story.report(0, (10, 99), instance=2, key=b"")
    story.carry(found((0, 2), instance=2))
    story.hello(3, topic="Other")
    story.apply()
    story.beats(NOW + 6000)
    story.beats(NOW + 12_000)
    assert story.apply().findings() == [("missing", "dc1", [[3, 4]])]
    assert story.accept(service="shop", server="web-2", disown=True) == [2]
    story.settle()
    assert story.verdict() == "carried", "there are events that nobody has reported"
    story.hello(2)
    story.hello(2, topic="Other")
    story.accept(instance=3, disown=True)
    story.beats(NOW + 18_000)
    assert story.apply().verdict() == "carried"
    assert story.verdict(topic="Other") == "unknown", "no reader counts it"


def test_a_late_report_raises_the_revision_and_opens_the_verdict_again(story: Story) -> None:
    story.hello()
    story.report(0, (0, 4), closed=W + WINDOW_MS)
    story.carry(found((0, 4)))
    story.beats()
    assert (story.apply().window()["verdict"], story.window()["revision"]) == ("complete", 0)
    story.report(1, (5, 9))
    assert (story.apply().window()["verdict"], story.window()["revision"]) == ("pending", 1)
    story.carry(found((5, 9)))
    story.beats(NOW + 6000)
    window = story.apply().window()
    assert window["verdict"] == "complete"
    assert window["revision"] == 1


def test_a_duplicate_after_complete_raises_the_revision_and_is_history(story: Story) -> None:
    story.whole()
    story.apply()
    story.count("dc1", SequenceCounts())
    story.count("offline", found((3, 3)))
    story.load(SequenceCounts())
    story.beats(NOW + 6000)
    window = story.apply().window()
    assert window["revision"] == 1
    assert story.findings()[0] == ("duplicate", "offline", [[3, 3]])
    with story.store.reading() as session:
        (said,) = answers.history(session, TOPIC, W, W + 1)
    assert said["what"] == "complete became incomplete at revision 1"


def test_a_time_that_was_final_and_empty_begins_at_revision_one(story: Story) -> None:
    story.whole()
    story.apply()
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=W + WINDOW_MS)
    story.carry(found((0, 4), instance=2, window=W + WINDOW_MS))
    story.beats(NOW + 6000)
    assert story.apply().window(W + WINDOW_MS)["revision"] == 1


def test_the_watermark_stops_at_what_is_not_complete_and_says_why(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=W + 2 * WINDOW_MS)
    story.count("dc1", found((0, 4), instance=2, window=W + 2 * WINDOW_MS))
    story.count("offline", found((0, 3), instance=2, window=W + 2 * WINDOW_MS))
    story.load(found((0, 3), instance=2, window=W + 2 * WINDOW_MS))
    story.beats(NOW + 6000)
    answer = story.apply().answer()
    assert answer["watermark"] == "2015-05-17T10:20:00Z"
    assert answer["held_by"] == "incomplete: 1 missing at offline (shop on web-2)"


def test_a_heartbeat_that_is_ahead_of_the_auditors_clock_makes_nothing_final(story: Story) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: W + WINDOW_MS)
    story.whole()
    assert story.apply().verdict() == "pending"


def test_messages_that_expired_uncounted_leave_a_doubt_on_what_was_not_final_yet(story: Story) -> None:
    story.whole()
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.hello(2, topic="Other")
    story.apply()
    here = NOW + WINDOW_MS
    story.hello(3)
    story.report(0, (0, 9), instance=3, window=here)
    counts = found((5, 9), instance=3, window=here)
    first = story.ends["dc1", "dc1", 0]
    story.count("dc1", counts, expired=SequenceRanges([(first, first + 9)]))
    story.count("offline", found((0, 9), instance=3, window=here))
    story.load(found((0, 9), instance=3, window=here))
    story.beats(LATER)
    window = story.apply().window(here)
    assert (window["verdict"], window["findings"]) == ("unknown", [])
    assert "were never counted in full at tier dc1" in window["reasons"][0]
    assert story.verdict() == "complete", "what was final before stays"


def test_counts_that_expired_unread_leave_a_doubt_and_do_not_stop_the_audit(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 4)))
    story.beats(W)
    story.ends["dc1", "dc1", 0] += STEP
    story.carry(found((5, 9)))
    story.beats()
    assert "offsets 100 to 200 of partition 0 were never counted" in story.apply().window()["reasons"][0]
    story.carry(found((10, 19), window=NOW))
    position = ReaderPosition(TOPIC, "dc1-PageView", 0, 900)
    story.beat("dc1", NOW + 6000, turn=2, positions=[position])
    assert "offsets 400 to 900 of partition 0" in " ".join(story.apply().window(NOW)["reasons"])


def test_positions_say_what_lost_audit_records_were_about_and_not_times_that_records_name(
    story: Story,
) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.beats(W - WINDOW_MS)
    story.apply()
    with story.store.writing() as session:
        ledger.lose(session, story.place((SAID, "dc1")), 0, 50)
    story.hello(time=0)
    story.report(0, (0, 9), time=0)
    story.carry(found((0, 9)))
    story.beats(NOW)
    story.beats(LATER)
    story.apply()
    verdicts = [story.verdict(W + n * WINDOW_MS) for n in (-3, 0, 5, 12)]
    assert verdicts == ["complete", "unknown", "unknown", "complete"]
    assert f"in dc1 from {iso(W - WINDOW_MS)} to {iso(NOW - 6000)}" in story.window()["reasons"][0]


def test_late_events_that_nobody_reported_are_unknown_while_reports_of_that_time_are_lost(
    quick: Story,
) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.report(0, (0, 9), window=W - WINDOW_MS)
    quick.carry(found((0, 9), window=W - WINDOW_MS))
    quick.beats(LATER - WINDOW_MS)
    quick.apply()
    with quick.store.writing() as session:
        ledger.lose(session, quick.place((SAID, "dc1")), len(quick.partitions[SAID, "dc1"]) * STEP, 1 << 20)
    quick.hello(9, topic="Other")
    quick.carry(found((0, 9), instance=3))
    quick.beats(LATER)
    quick.apply()
    assert (quick.verdict(), quick.verdict(W - WINDOW_MS)) == ("unknown", "complete")
    assert "audit records were lost before the auditor read them" in quick.window()["reasons"][0]


def test_a_lost_hello_is_made_up_for_by_a_report_only_while_windows_of_that_time_are_kept(
    quick: Story,
) -> None:
    quick.whole()
    quick.apply()
    with quick.store.writing() as session:
        ledger.lose(session, quick.place((SAID, "dc1")), STEP, 1 << 20)
    quick.hello(9, topic="Other")
    quick.beats(LATER)
    quick.report(4, (0, 9), instance=3, window=NOW)
    assert quick.apply().rejected_records() == []
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER + OPTIONS.keep_ms + WINDOW_MS)
    with quick.store.writing() as session:
        expire(session, quick.options)
    quick.report(4, (0, 9), instance=4, window=NOW)
    assert quick.apply().rejected_records() == [("Report", "its instance has not said hello")]


def test_late_events_wait_for_a_partition_of_the_copy_that_cannot_be_read(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.beats(LATER - WINDOW_MS)
    quick.report(0, (0, 9))
    quick.count("dc1", found((0, 9)))
    quick.beat("dc1", LATER)
    quick.beat("dc2", LATER)
    quick.beat("offline", LATER, unreadable=[Unreadable(TOPIC, "offline-PageView", 0, 100, "damaged")])
    assert quick.apply().verdict() == "unknown"
    assert any("in offline cannot be read at offset 100" in reason for reason in quick.window()["reasons"])


def test_a_window_that_is_still_to_come_says_so(quick: Story) -> None:
    quick.hello()
    ahead = NOW - NOW % WINDOW_MS + 12 * WINDOW_MS
    quick.report(0, (0, 9), window=ahead)
    quick.beats()
    quick.apply()
    assert quick.verdict(ahead) == "pending"
    assert "still to come" in quick.window(ahead)["reasons"][0]


def test_what_lost_counts_and_loads_may_have_told_is_not_missing(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.report(0, (0, 9))
    quick.hello(2, topic="Other")
    quick.count("dc1", SequenceCounts(), topic="Other", partition=1)
    quick.count("dc1", found((0, 9)))
    quick.count("offline", found((0, 9)))
    quick.beats(LATER - WINDOW_MS)
    quick.apply()
    there = quick.partitions[OWN, "offline"]
    with quick.store.writing() as session:  # the load is among them
        ledger.lose(session, quick.place((OWN, "offline")), len(there) * STEP, (len(there) + 5) * STEP)
    quick.load(SequenceCounts())
    quick.beats(LATER)
    quick.apply()
    assert (quick.verdict(), quick.findings()) == ("unknown", [])
    assert quick.verdict(W - WINDOW_MS, topic="Other") == "complete"


def test_what_was_counted_before_a_database_begins_is_not_missing(quick: Story) -> None:
    """Its counts are there still, but the turn that signed them is forgotten."""
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.report(0, (0, 9))
    quick.count("dc1", found((0, 9)), turn=None)
    quick.beat("dc1", NOW, turn=None)
    quick.count("offline", found((0, 9)))
    quick.load(found((0, 9)))
    quick.beat("dc2", NOW)
    position = ReaderPosition(TOPIC, "dc1-PageView", 0, quick.ends["dc1", "dc1", 0])
    quick.beat("dc1", LATER - 3 * WINDOW_MS, positions=[position])
    quick.hello(2)
    quick.report(0, (0, 9), instance=2, window=LATER - 2 * WINDOW_MS)
    quick.carry(found((0, 9), instance=2, window=LATER - 2 * WINDOW_MS))
    quick.beats(LATER)
    quick.apply()
    assert (quick.verdict(), quick.findings()) == ("unknown", [])
    answer = quick.answer(LATER - 2 * WINDOW_MS)
    assert (answer["verdict"], answer["watermark"]) == ("complete", "2015-05-17T13:10:00Z")


def test_a_topic_that_a_reader_does_not_count_is_unknown_until_it_does(quick: Story) -> None:
    quick.whole()
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello(2, topic="Other")
    quick.report(0, (0, 9), instance=2, topic="Other")
    quick.beats(LATER - WINDOW_MS)
    assert quick.apply().verdict(topic="Other") == "unknown"
    cause = "the reader of dc1 has not counted topic Other"
    assert any(cause in reason for reason in quick.window(topic="Other")["reasons"])
    counts = found((0, 4), instance=2), found((5, 9), instance=2)
    quick.count("dc1", counts[0], topic="Other", partition=5)  # the first of what there is
    quick.apply()
    assert quick.verdict(topic="Other") == "unknown"
    quick.count("dc1", counts[1], topic="Other", partition=5)
    for part in counts:
        quick.count("offline", part, topic="Other", partition=5)
        quick.load(part, topic="Other")
    quick.beats(LATER)
    assert quick.apply().verdict(topic="Other") == "complete", quick.window(topic="Other")


def test_a_clock_that_ran_ahead_once_makes_nothing_final_before_it_is_heard(quick: Story) -> None:
    quick.beat("dc1", NOW + 365 * 144 * WINDOW_MS)
    quick.beat("dc1", NOW + 365 * 144 * WINDOW_MS + 6000)
    quick.whole()
    assert quick.apply().verdict(W + WINDOW_MS) == "complete"
    quick.beat("dc1", NOW + 6000, through=quick.said_end() + 5 * STEP)
    quick.apply()
    quick.beat("dc1", NOW + 12_000, through=quick.said_end() + 5 * STEP)
    quick.options = replace(OPTIONS, clock_ms=lambda: NOW + 12 * WINDOW_MS)
    later = NOW + 11 * WINDOW_MS + 60_000
    for tier in ("dc1", "dc2", "offline"):
        quick.beat(tier, later, through=None if tier == "offline" else quick.said_end() + 5 * STEP)
    assert quick.apply().verdict(NOW + 5 * WINDOW_MS) == "unknown"
    assert "check the mirror of `audit`" in quick.window(NOW + 5 * WINDOW_MS)["reasons"][0]


def test_a_producer_whose_clock_is_far_ahead_is_not_awaited_until_then(quick: Story) -> None:
    quick.hello(time=NOW + 365 * 144 * WINDOW_MS)
    quick.report(0, (0, 9), time=NOW + 365 * 144 * WINDOW_MS, closed=NOTHING)
    quick.carry(found((0, 9)))
    quick.beats()
    assert quick.apply().verdict() == "unknown"


def test_what_is_deleted_before_it_is_known_holds_nothing_up(quick: Story) -> None:
    quick.load(SequenceCounts())
    end = LoadEnd("offline-PageView", 99, 500)
    load = LoadCount(time=NOW, topic=TOPIC, source=LoadNumber(2), counts=SequenceCounts(), ends=[end])
    quick.say(OWN, "offline", load)
    quick.loads += 1
    quick.beat("offline", W, positions=[ReaderPosition(TOPIC, "offline-PageView", 99, None)])
    quick.whole()
    assert quick.apply().verdict() == "complete", quick.window()


def test_who_was_not_heard_among_too_many_may_speak_once_some_are_accepted(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_audit.auditor.records.reported.MOST_OPEN", 3)
    for instance in range(100, 103):
        quick.hello(instance, service="evil")
    quick.hello()
    quick.report(0, (0, 4), closed=W)
    quick.apply()
    quick.accept(service="evil")
    quick.report(1, (5, 9))
    quick.carry(found((0, 4)))
    quick.beats()
    assert quick.apply().findings() == [("missing", "dc1", [[5, 9]])]


def crowded(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of nobody are open, and no more may be; instance 1 has said hello meanwhile."""
    monkeypatch.setattr("millrace_audit.auditor.records.reported.MOST_OPEN", 3)
    for instance in (11, 12, 13):
        story.hello(instance, service="evil")
    story.beats(W)
    story.apply()
    story.hello(1)
    story.apply()


def test_what_was_reported_in_a_crowd_is_not_forgotten_as_if_nobody_had_said_it(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded(quick, monkeypatch)
    quick.report(0, (0, 0), closed=W + WINDOW_MS)  # and it is at no tier
    quick.apply()
    quick.accept(service="evil")
    quick.beats()
    assert quick.apply().verdict() == "unknown"
    quick.report(1, closed=FOR_EVER)
    quick.beats(NOW + 6000)
    assert quick.apply().verdict() == "unknown"


def test_events_that_were_reported_in_a_crowd_are_not_unexpected_later(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded(quick, monkeypatch)
    quick.report(0, (0, 4), closed=W)
    quick.apply()
    quick.accept(service="evil")
    quick.report(1, (5, 9), closed=FOR_EVER)
    quick.carry(found((0, 9)))
    quick.beats()
    assert quick.apply().findings() == []


def test_who_said_hello_in_a_crowd_has_its_names_and_its_seal(
    quick: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded(quick, monkeypatch)
    quick.report(0, closed=W, key=b"f" * 16, seal=seal_of(b"g" * 16))
    quick.apply()
    assert ("Report", "its key does not fit the seal of what was said before") in quick.rejected_records()
    quick.report(0, (0, 4), closed=W)
    quick.apply()
    assert quick.rejected_records()[-1] == ("Report", "more than 3 instances are open")


def test_beats_of_a_clock_that_was_set_back_are_thinned_where_they_lie(quick: Story) -> None:
    times = [W, W + 6000, W + WINDOW_MS, W + 12_000, W + 18_000]
    for n, time in enumerate(times):
        quick.count("dc1", found((n, n), instance=5))
        quick.beat("dc1", time)
    quick.beat("dc1", W + 9 * WINDOW_MS)
    quick.apply()
    with quick.store.reading() as session:
        beats = session.scalars(select(CheckpointRow).order_by(CheckpointRow.serial)).all()
        marks = session.scalars(select(EndsRow).order_by(EndsRow.serial)).all()
    assert [beat.time for beat in beats] == [W, W + WINDOW_MS, W + 12_000, W + 9 * WINDOW_MS]
    assert [mark.ends["dc1-PageView-0"] for mark in marks] == [[100], [200], [300], [400], [500]]


def test_a_late_event_in_an_expired_range_is_not_missing(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello(3)
    quick.beats(LATER - WINDOW_MS)  # everything up to here is counted
    quick.report(0, (0, 9), instance=3)  # of W, sent late
    first = quick.ends["dc1", "dc1", 0]
    quick.count("dc1", found((5, 9), instance=3), expired=SequenceRanges([(first, first + 9)]))
    quick.count("offline", found((0, 9), instance=3))
    quick.load(found((0, 9), instance=3))
    quick.beats(LATER)
    quick.apply()
    assert (quick.verdict(), quick.findings()) == ("unknown", [])


def test_a_late_event_in_a_partition_that_cannot_be_read_is_not_missing(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello(3)
    quick.beats(LATER - WINDOW_MS)
    quick.report(0, (0, 9), instance=3)
    bad = Unreadable(TOPIC, "dc1-PageView", 0, 100, "damaged")
    for time in (LATER - 6000, LATER):
        quick.beat("dc1", time, unreadable=[bad])
        quick.beat("dc2", time)
        quick.beat("offline", time)
    quick.apply()
    assert (quick.verdict(), quick.findings()) == ("unknown", [])


def test_what_a_gap_does_not_explain_stays_as_it_is_judged(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.hello()
    quick.report(0, (0, 9))
    quick.carry(found((0, 4)))
    quick.hello(2)
    quick.report(0, (0, 9), instance=2, window=W + WINDOW_MS)
    quick.carry(found((0, 9), instance=2, window=W + WINDOW_MS))
    quick.beats(LATER - WINDOW_MS)
    first = quick.ends["dc1", "dc1", 0]
    quick.count("dc1", SequenceCounts(), expired=SequenceRanges([(first, first + 9)]))
    quick.carry(found((0, 0), instance=5), cluster="dc2")  # what is late has both windows judged again
    quick.carry(found((0, 0), instance=5, window=W + WINDOW_MS), cluster="dc2")
    quick.beats(LATER)
    quick.apply()
    assert quick.findings() == [("missing", "dc1", [[5, 9]])], "lost before there was a gap"
    assert quick.verdict(W + WINDOW_MS) == "carried", "nothing is there that a gap must explain"


def test_what_expired_at_the_home_uncounted_is_no_surplus_behind_it(quick: Story) -> None:
    quick.options = replace(OPTIONS, clock_ms=lambda: LATER)
    quick.whole()
    quick.beats(LATER - WINDOW_MS)
    first = quick.ends["dc1", "dc1", 0]
    quick.count("dc1", SequenceCounts(), size=2 * STEP, expired=SequenceRanges([(first, first + 9)]))
    for late in (found((0, 4), instance=5), found((3, 3))):
        quick.count("offline", late, foreign=[ForeignCount(W, 2, 5)])
        quick.load(late)
    quick.beats(LATER)
    quick.apply()
    assert (quick.verdict(), quick.findings()) == ("unknown", [])


def test_copies_of_which_is_not_known_how_far_they_are_come_before_no_count_of_their_cluster(
    story: Story,
) -> None:
    """The aggregate cluster's reader may count copies before the mirror reports, and before dc1's reader."""
    story.beats(NOW - WINDOW_MS)
    story.hello()
    early = Origin("dc1", f"dc1-{TOPIC}", 0, None)
    story.count("offline", found((0, 9)), origin=early)
    story.beat("dc1", NOW, positions=[ReaderPosition(TOPIC, f"dc1-{TOPIC}", 0, 0)])
    story.beat("dc2", NOW)
    story.beat("offline", NOW)
    assert story.apply().findings() == []
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found(), size=0)
    story.load(found((0, 9)))
    story.beats(LATER)
    assert story.apply().verdict() == "complete", story.window()


def test_copies_behind_the_last_known_position_of_the_mirror_come_before_no_count_of_their_cluster(
    story: Story,
) -> None:
    """Under traffic the aggregate cluster's reader counts copies whose position is not visible yet."""
    story.beats(NOW - WINDOW_MS)
    story.hello()
    story.report(0, (0, 9), closed=W)
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    place, reached = f"dc1-{TOPIC}", story.ends["offline", "dc1", 0]
    early = Origin("dc1", place, 0, reached)
    story.count("offline", found((10, 19)), origin=early, copied_through=reached)
    story.beats(NOW)
    assert story.apply().findings() == []
    story.report(1, (10, 19))
    story.count("dc1", found((10, 19)))
    story.count("offline", found(), size=0)
    story.load(found((0, 19)))
    story.beats(LATER)
    assert story.apply().verdict() == "complete", story.window()


def test_a_surplus_is_found_although_later_copies_lie_behind_the_known_position(story: Story) -> None:
    story.beats(NOW - WINDOW_MS)
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 10)))
    story.count("dc1", found((10, 19), window=W + WINDOW_MS))
    for later in (1, 2):  # the traffic goes on, and a position is always known late
        reached = story.ends["offline", "dc1", 0]
        early = Origin("dc1", f"dc1-{TOPIC}", 0, reached)
        copies = found((10 * later, 10 * later + 9), window=W + later * WINDOW_MS)
        story.count("offline", copies, origin=early, copied_through=reached)
    story.beats(NOW)
    assert story.apply().findings() == [("unexpected", "offline", [[10, 10]])]


@pytest.mark.parametrize("is_alone", [False, True], ids=["by a heartbeat", "before a heartbeat"])
def test_a_log_that_was_truncated_leaves_the_windows_between_unknown_and_is_counted_on(
    story: Story, is_alone: bool
) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.whole()
    story.beats(NOW - 2 * WINDOW_MS)
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=NOW - 2 * WINDOW_MS)
    story.carry(found((0, 4), instance=2, window=NOW - 2 * WINDOW_MS))
    story.beats(NOW)
    assert story.apply().answer(W, 8)["verdict"] == "complete"
    counted = story.ends["dc1", "dc1", 0]
    end = story.ends["dc1", "dc1", 0] = counted - STEP + 1
    truncated = [Truncated(TOPIC, "dc1-PageView", 0, counted, end)]
    if is_alone:
        story.beat("dc1", NOTHING, truncated=truncated)
        truncated = []
    story.beat("dc1", NOW + WINDOW_MS, truncated=truncated)
    story.hello(3)
    story.report(0, (0, 4), instance=3, window=NOW + 2 * WINDOW_MS, closed=NOW)
    story.report(1, (5, 9), instance=3, window=NOW)  # they were in what is gone
    new = found((0, 4), instance=3, window=NOW + 2 * WINDOW_MS)
    story.count("dc1", new, size=2 * STEP)
    reset = Origin("dc1", "dc1-PageView", 0, end + 2 * STEP)  # by `millrace mirror reset`
    story.count("offline", new, origin=reset)
    story.load(new)
    story.beats(LATER)
    story.apply()
    assert story.verdict() == "complete", story.window()
    assert story.verdict(NOW + 2 * WINDOW_MS) == "complete", story.window(NOW + 2 * WINDOW_MS)
    assert story.verdict(NOW - 2 * WINDOW_MS) == "complete", "what was final stays"
    window = story.window(NOW)
    assert [(f["kind"], f["tier"]) for f in window["findings"]] == [("missing", "offline")], (
        "not known of dc1"
    )
    assert f"offsets {end} to {counted} of partition 0" in " ".join(window["reasons"])


def cut_back(story: Story, tier: str) -> None:
    """Report that a tier's log was cut back to where its newest count began; the next count begins there."""
    counted = story.ends[tier, "dc1", 0]
    partition = 10 if tier == "offline" else 0
    log = Truncated(TOPIC, f"{tier}-{TOPIC}", partition, counted, counted - STEP)
    story.beat(tier, NOTHING, truncated=[log])
    story.ends[tier, "dc1", 0] -= STEP


def counted_after_the_close(story: Story) -> None:
    """Close the first window: events that are counted from now on come late."""
    story.options = replace(OPTIONS, clock_ms=lambda: LATER, carried=".*")
    for tier in ("dc1", "offline"):
        story.count(tier, SequenceCounts())
    story.beats(W + 3 * WINDOW_MS)


@pytest.mark.parametrize("tier", ["dc1", "offline"])
def test_events_that_come_back_after_a_log_was_cut_back_are_unknown_in_an_open_window(
    story: Story, tier: str
) -> None:
    events = found((0, 9))
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", events)
    story.beats(W + WINDOW_MS // 2)
    if tier == "offline":
        story.count("offline", events)
    cut_back(story, tier)
    story.count(tier, events)
    if tier == "dc1":
        story.count("offline", events)
    story.load(events)
    story.beats()
    assert (story.apply().verdict(), story.findings()) == ("unknown", []), story.window()


@pytest.mark.parametrize("tier", ["dc1", "offline"])
def test_events_that_come_back_after_a_log_was_cut_back_are_unknown_in_a_final_window(
    story: Story, tier: str
) -> None:
    counted_after_the_close(story)
    story.whole()
    assert story.apply().verdict() == "complete"
    cut_back(story, tier)
    assert story.apply().verdict() == "complete", "nothing has come back yet"
    story.count(tier, found((0, 9)))
    story.beats(LATER)
    assert (story.apply().verdict(), story.findings()) == ("unknown", [])
    (reason,) = (text for text in story.window()["reasons"] if text.startswith("10 seem duplicate"))
    partition = 10 if tier == "offline" else 0
    assert f"at {tier} (instance 1 (shop on web-1), sequences 0-9)" in reason
    assert f"but offsets 100 to 200 of partition {partition}" in reason
    assert "the log was truncated" in reason


def test_messages_without_a_header_that_come_back_after_a_log_was_cut_back_are_unknown(story: Story) -> None:
    counted_after_the_close(story)
    foreign = [ForeignCount(W, 50, 7)]
    for tier in ("dc1", "offline"):
        story.count(tier, SequenceCounts(), foreign=foreign)
    story.load(SequenceCounts())
    story.beats()
    assert story.apply().verdict() == "carried"
    cut_back(story, "offline")
    story.count("offline", SequenceCounts(), foreign=foreign)
    story.beats(LATER)
    assert (story.apply().verdict(), story.findings()) == ("unknown", [])


def test_a_duplicate_in_a_window_that_no_cut_log_has_touched_stays_incomplete(story: Story) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    before, after = NOW - 2 * WINDOW_MS, NOW + WINDOW_MS
    story.hello()
    story.report(0, (0, 9), window=before, closed=NOW)
    story.carry(found((0, 9), window=before))
    story.count("dc1", SequenceCounts())
    story.count("offline", found((3, 3), window=before))
    story.beats()
    assert story.apply().findings(before) == [("duplicate", "offline", [[3, 3]])], story.window(before)
    for tier in ("dc1", "offline"):
        story.count(tier, SequenceCounts())
    cut_back(story, "offline")
    story.count("offline", SequenceCounts())
    story.beat("offline", NOW + 1)
    story.report(1, (10, 19), window=after, closed=FOR_EVER)
    story.carry(found((10, 19), window=after))
    story.count("offline", found((12, 12), window=after))
    story.count("dc1", SequenceCounts())
    story.verified((before - before % HOUR_MS, "a file was edited"))  # has the window judged again
    story.beats(LATER)
    story.apply()
    assert story.findings(before) == [("duplicate", "offline", [[3, 3]])]
    assert (story.verdict(after), story.findings(after)) == (
        "incomplete",
        [("duplicate", "offline", [[12, 12]])],
    )


def test_what_does_not_come_back_is_missing_although_a_log_was_cut_back(story: Story) -> None:
    """One event is lost on the way into the copy, and one on the way into the warehouse."""
    counted_after_the_close(story)
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 8)))
    story.load(found((0, 7)))
    story.beats()
    cut_back(story, "offline")
    story.count("offline", found((0, 8)))
    story.beats(LATER)
    assert story.apply().verdict() == "incomplete"
    assert story.findings() == [("missing", "warehouse", [[8, 8]])]
    assert any(text.startswith("1 seem missing at offline") for text in story.window()["reasons"])


def test_a_clock_set_back_does_not_close_a_gap(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    quick.beats(W + 60_000)
    quick.count("dc1", found((5, 9)), expired=SequenceRanges([(0, 9)]))
    quick.count("offline", found((0, 9)))
    quick.load(found((0, 9)))
    quick.beat("dc1", W - 6 * WINDOW_MS)
    quick.beats()
    assert quick.apply().verdict() == "unknown", quick.window()


def test_a_partition_that_cannot_be_read_holds_its_own_topic_up_and_no_other(story: Story) -> None:
    story.options = replace(OPTIONS, clock_ms=lambda: LATER)
    story.whole()
    story.hello(2, topic="Other")
    for number, at in enumerate((W, NOW)):
        part, closed = (5 * number, 5 * number + 4), (NOW, FOR_EVER)[number]
        story.report(number, part, instance=2, topic="Other", window=at, closed=closed)
        for tier in ("dc1", "offline"):
            story.count(tier, found(part, instance=2, window=at), topic="Other", partition=5)
        story.load(found(part, instance=2, window=at), topic="Other")
    story.hello(3)
    story.report(0, (0, 4), instance=3, window=NOW)
    bad = Unreadable(TOPIC, "dc1-PageView", 0, 100, "the batch is damaged")
    for time in (LATER, LATER + 6000):
        story.beat("dc1", time, unreadable=[bad])
        story.beat("dc2", time)
        story.beat("offline", time)
    story.apply()
    window = story.window(NOW)
    assert (window["verdict"], window["findings"]) == ("unknown", [])
    cause = "the log of PageView-0 in dc1 cannot be read at offset 100: the batch is damaged"
    assert any(cause in reason for reason in window["reasons"])
    assert story.verdict() == "complete"
    assert story.verdict(topic="Other") == "complete"
    assert story.answer(NOW, topic="Other")["windows"][0]["verdict"] == "complete"
    story.carry(found((0, 4), instance=3, window=NOW))
    story.beats(LATER + 6000)
    assert story.apply().verdict(NOW) == "complete"


def test_what_the_home_has_not_counted_yet_is_no_surplus_behind_it(story: Story) -> None:
    story.beat("dc1", W, positions=[ReaderPosition(TOPIC, "dc1-PageView", 0, 0)])
    story.count("offline", found((0, 4), instance=5))
    story.beats()
    window = story.apply().window()
    assert (window["verdict"], window["findings"]) == ("pending", [])
    story.count("dc1", found((0, 4), instance=5))
    story.load(found((0, 4), instance=5))
    story.beats(NOW + 6000)
    story.beats(NOW + 12_000)
    assert story.apply().verdict() == "carried", story.window()


def test_a_load_is_awaited_that_has_come_to_the_newest_count_of_a_window(quick: Story) -> None:
    quick.whole()
    quick.apply()
    for tier in ("offline", "dc1"):  # late events of a new partition, which the aggregate counts first
        quick.count(tier, found((0, 4), instance=77), partition=1)
        quick.beats(NOW + 6000)
        quick.apply()
        assert (quick.verdict(), quick.findings()) == ("pending", [])
    assert "not loaded yet" in quick.window()["reasons"][0]


def test_a_partition_that_is_deleted_after_it_was_loaded_holds_nothing_up(quick: Story) -> None:
    quick.whole()
    quick.apply()
    quick.beat("offline", NOW + 6000, positions=[ReaderPosition(TOPIC, "offline-PageView", 10, None)])
    window = W + WINDOW_MS
    quick.hello(2)
    quick.report(0, (0, 4), instance=2, window=window)
    counts = found((0, 4), instance=2, window=window)
    quick.count("dc1", counts)
    quick.count("offline", counts, topic_id="new", start=0, end=STEP)  # its mirror begins anew
    quick.load(counts)
    quick.beats(NOW + 12_000)
    assert quick.apply().verdict(window) == "complete", quick.window(window)


def test_what_was_deleted_before_it_was_loaded_is_missing_in_the_warehouse(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    for tier in ("dc1", "offline"):
        quick.count(tier, found((0, 9)))
    quick.beats()
    quick.beat("offline", NOW + 6000, positions=[ReaderPosition(TOPIC, "offline-PageView", 10, None)])
    quick.count("offline", SequenceCounts(), topic_id="new", start=0, end=STEP)
    quick.load(SequenceCounts())
    quick.beats(NOW + 12_000)
    assert quick.apply().findings() == [("missing", "warehouse", [[0, 9]])]


def test_a_deleted_partition_is_awaited_nowhere(story: Story) -> None:
    story.whole()
    story.count("dc1", found((0, 4), instance=5), partition=1)
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "pending"
    story.beat("dc1", NOW + 12_000, positions=[ReaderPosition(TOPIC, "dc1-PageView", 1, None)])
    story.beat("offline", NOW + 12_000)
    assert story.apply().findings() == [("missing", "offline", [[0, 4]])]


# Loads.


def test_what_readers_and_loads_said_counts_once_though_it_is_read_again_from_a_topic_made_again(
    quick: Story,
) -> None:
    quick.whole()
    before = quick.apply().answer()
    read_again(quick)
    assert quick.answer() == before


def test_a_later_edition_of_a_load_takes_the_place_of_the_one_before(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.beats()
    editions = [found((0, 4)), found((0, 9)), found((0, 9))]
    before = SequenceCounts()
    for number, counts in enumerate(editions, 1):
        for record in edition_records(TOPIC, LoadNumber(1, number), before, counts):
            for _ in range(2):
                more, less = record.counts, record.removed
                story.load(more, source=record.source, removed=less)
        before = counts
    assert story.apply().verdict() == "complete", story.window()
    story.load(SequenceCounts(), source=LoadNumber(1, 4), removed=found((3, 3)))
    assert story.apply().findings() == [("missing", "warehouse", [[3, 3]])]
    assert story.window()["revision"] == 1


def test_the_parts_of_a_load_count_one_after_the_other(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.beats()
    story.load(found((5, 9)), source=LoadNumber(1, 1, 2, 2))
    story.load(found((0, 4)), source=LoadNumber(1, 1, 1, 2))
    assert story.apply().verdict() == "pending", "how far it is loaded is said by the last part that counts"
    story.load(found((0, 4)), source=LoadNumber(1, 1, 1, 2))
    story.load(found((5, 9)), source=LoadNumber(1, 1, 2, 2))
    assert story.apply().verdict() == "complete"


def sent(story: Story) -> None:
    """Ten events that the aggregate cluster holds."""
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.beats()


def read_again(story: Story) -> None:
    """Apply all records of the aggregate cluster's readers again, as from a topic that was made again."""
    with story.store.writing() as session:
        place = replace(story.place((OWN, "offline")), topic_id="another")
        ledger.apply(session, place, story.partitions[OWN, "offline"], NOW)
    story.settle()


@pytest.mark.parametrize("is_read_again", [False, True], ids=["once", "read again"])
def test_a_load_that_is_read_back_in_another_number_of_parts_counts_as_it_was_read_last(
    story: Story, is_read_again: bool
) -> None:
    """Its reader was killed between two parts, and a file of the load was lost before the next start."""
    sent(story)
    story.load(found((0, 3)), source=LoadNumber(1, 1, 1, 3))
    next_hours = [HourRows(W - W % HOUR_MS + HOUR_MS, 3)]
    story.load(found((4, 6)), source=LoadNumber(1, 1, 2, 3), hours=next_hours)
    assert story.apply().verdict() == "pending"
    story.load(found((0, 1)), source=LoadNumber(1, 1, 1, 2))
    assert story.apply().verdict() == "pending"
    if is_read_again:
        read_again(story)
    story.load(found((2, 3)), source=LoadNumber(1, 1, 2, 2), hours=[])
    assert story.apply().findings() == [("missing", "warehouse", [[4, 9]])]
    this_hour, next_hour = story.completeness(W, 12).hours or ()
    assert ([each.rows for each in this_hour.loads], next_hour.loads) == ([2], [])
    if is_read_again:
        read_again(story)
    story.load(found((4, 9)), source=LoadNumber(1, 2))
    assert story.apply().verdict() == "complete", story.window()
    if is_read_again:
        read_again(story)
        assert story.verdict() == "complete", story.window()


def test_a_load_that_is_read_back_in_fewer_parts_than_were_counted_is_counted(story: Story) -> None:
    sent(story)
    story.load(found((0, 3)), source=LoadNumber(1, 1, 1, 3))
    story.load(found((4, 6)), source=LoadNumber(1, 1, 2, 3))
    story.load(found((0, 3)), source=LoadNumber(1, 1, 1, 1))
    assert story.apply().findings() == [("missing", "warehouse", [[4, 9]])]


def test_a_later_part_with_other_rows_counts_in_place_of_the_part_before(story: Story) -> None:
    """The file that was lost had rows of the second of three parts only, and the split moved."""
    sent(story)
    story.load(found((0, 3)), source=LoadNumber(1, 1, 1, 3))
    story.load(found((4, 6)), source=LoadNumber(1, 1, 2, 3))
    for part, rows in enumerate([(0, 3), (5, 7), (8, 9)], 1):
        story.load(found(rows), source=LoadNumber(1, 1, part, 3))
    assert story.apply().findings() == [("missing", "warehouse", [[4, 4]])]


def test_a_part_that_is_repeated_late_does_not_set_its_load_back(story: Story) -> None:
    sent(story)
    for part, rows in ((1, (0, 3)), (2, (4, 6)), (1, (0, 3)), (3, (7, 9))):
        story.load(found(rows), source=LoadNumber(1, 1, part, 3), unkeyed=[UnkeyedRows(W, 0)])
    assert story.apply().verdict() == "complete"


def test_what_is_said_of_loads_counts_only_in_the_newest_turn_of_the_warehouse(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.beats()
    story.load(found((0, 4)), turn=3)
    story.load(found((5, 9)), turn=2)
    assert story.apply().findings() == [("missing", "warehouse", [[5, 9]])]
    story.load(found((5, 9)), turn=None)
    assert story.apply().findings() == [("missing", "warehouse", [[5, 9]])]
    assert [kind for kind, _ in story.rejected_records()] == ["LoadCount", "LoadCount"]
    story.load(found((5, 9)), turn=3)
    assert story.apply().verdict() == "complete"


# Published tables.


def test_a_published_hour_is_compared_with_what_was_loaded(story: Story) -> None:
    story.whole()
    assert "table" not in story.apply().window()["tiers"], "it is not published"
    story.publish(found((0, 9)))
    window = story.apply().window()
    assert (window["verdict"], window["tiers"]["table"], window["revision"]) == ("complete", 10, 0)


@pytest.mark.parametrize(
    ("there", "finding"),
    [
        ([(0, 3), (5, 9)], ("missing", "table", [[4, 4]])),
        ([(0, 9), (4, 4)], ("duplicate", "table", [[4, 4]])),
        ([(0, 9), (77, 77)], ("unexpected", "table", [[77, 77]])),
        ([], ("missing", "table", [[0, 9]])),
    ],
)
def test_what_the_table_makes_of_rows_turns_the_verdict_and_setting_it_right_turns_it_back(
    story: Story, there: list[Range], finding: tuple[str, str, Any]
) -> None:
    story.whole()
    story.publish(found((0, 9)))
    assert story.apply().verdict() == "complete"
    story.publish(found(*there))
    assert story.apply().findings() == [finding]
    assert story.verdict() == "incomplete"
    story.publish(found((0, 9)))
    assert story.apply().verdict() == "complete"
    with story.store.reading() as session:
        said = [entry["what"] for entry in answers.history(session, TOPIC, W, W + WINDOW_MS)]
    assert said == ["complete became incomplete at revision 0", "incomplete became complete at revision 0"]


def test_a_table_that_is_behind_what_was_loaded_is_no_loss(story: Story) -> None:
    story.whole()
    story.publish(found((0, 4)))
    story.load(found((10, 10)))
    window = story.apply().window()
    assert "table" not in window["tiers"]
    assert not [finding for finding in story.findings() if finding[1] == "table"]


def test_rows_that_nobody_loaded_are_unexpected_in_the_table(story: Story) -> None:
    story.whole()
    stranger = found((0, 9))
    stranger.merge(found((3, 4), instance=99))
    story.publish(stranger)
    assert story.apply().findings() == [("unexpected", "table", [[3, 4]])]


def test_a_table_count_that_comes_again_or_from_a_turn_that_is_over_has_no_effect(story: Story) -> None:
    story.whole()
    story.publish(found((0, 3)), number=4, turn=2)
    for number, turn in ((4, 2), (3, 2), (9, 1), (9, None)):
        story.publish(found((0, 9)), number=number, turn=turn)
        assert story.apply().verdict() == "incomplete", (number, turn)
    story.publish(found((0, 9)), number=0, turn=3)
    assert story.apply().verdict() == "complete"


def test_a_table_count_in_parts_and_the_same_name_in_two_clusters(story: Story) -> None:
    for cluster, last in (("dc1", 4), ("dc2", 6)):
        story.hello(cluster=cluster)
        story.report(0, (0, last), cluster=cluster)
        story.count(cluster, found((0, last)), cluster=cluster)
        story.count("offline", found((0, last)), cluster=cluster)
    story.load(found((0, 4), (0, 6)))
    story.publish(found((0, 4)))
    story.publish(found((0, 6)), windows=())
    story.beats()
    assert story.apply().verdict() == "complete", story.window()
    story.publish(found((0, 4), (0, 5)))
    assert story.apply().findings() == [("missing", "table", [[6, 6]])]


def test_hours_of_a_table_without_events_leave_no_windows(story: Story) -> None:
    story.whole()
    story.publish(found((0, 9)), windows=[W + n * WINDOW_MS for n in range(6)])
    story.apply()
    with story.store.reading() as session:
        assert session.scalar(select(func.count()).select_from(WindowRow)) == 1


def test_what_verify_finds_turns_the_verdict_and_a_clean_run_turns_it_back(story: Story) -> None:
    hour = W - W % HOUR_MS
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=W + HOUR_MS)
    story.carry(found((0, 4), instance=2, window=W + HOUR_MS))
    story.beats(NOW + HOUR_MS)
    story.options = replace(OPTIONS, clock_ms=lambda: NOW + HOUR_MS)
    assert story.apply().verdict() == story.verdict(W + HOUR_MS) == "complete"
    text = "PageView/rows/0000000001-x/2015-05-17T10-0.parquet was changed"
    for _ in range(2):  # it is told again by every reader that begins
        story.verified((hour, text))
        assert story.apply().verdict() == "incomplete"
    assert story.window()["reasons"] == [f"`millrace verify` found: {text}"]
    assert story.verdict(W + HOUR_MS) == "complete", "the other hours are as they were written"
    story.verified()
    assert story.apply().verdict() == "complete"
    with story.store.reading() as session:
        said = [(e["who"], e["what"]) for e in answers.history(session, TOPIC, hour, hour + HOUR_MS)]
    assert said == [
        ("millrace verify", f"found: {text}"),
        ("the auditor", "complete became incomplete at revision 0"),
        ("millrace verify", f"found right again: {text}"),
        ("the auditor", "incomplete became complete at revision 0"),
    ]


def test_what_verify_finds_in_an_hour_without_events_makes_it_incomplete(story: Story) -> None:
    hour = W - W % HOUR_MS - HOUR_MS
    story.whole()
    assert story.apply().verdict(hour) == "complete", "nothing happened, and everybody has said so"
    story.verified((hour, "rows that no load has written"))
    assert story.apply().verdict(hour) == "incomplete"
    story.verified()
    assert story.apply().verdict(hour) == "complete"


def test_a_problem_of_no_hour_makes_the_topic_unknown_and_no_other(story: Story) -> None:
    story.whole()
    story.hello(7, topic="Other")
    story.report(0, (0, 1), instance=7, topic="Other")
    for tier in ("dc1", "offline"):
        story.count(tier, found((0, 1), instance=7), topic="Other", partition=1)
    story.load(found((0, 1), instance=7), topic="Other")
    story.beats(NOW + 6000)
    assert story.apply().verdict(topic="Other") == "complete", story.window(topic="Other")
    story.verified((None, "PageView/loads/0000000001.json: the manifest was edited"))
    assert story.apply().verdict() == "unknown"
    assert story.answer()["watermark"] is None
    assert story.verdict(topic="Other") == "complete"
    story.verified()
    assert story.apply().verdict() == "complete"


# What it costs.


def test_only_what_changed_is_judged_again(quick: Story) -> None:
    quick.hello(2)
    for at in range(50):
        quick.report(at, (9 * at, 9 * at + 8), instance=2, window=W + at * WINDOW_MS, closed=NOTHING)
    quick.carry(found((0, 9)))
    quick.beats()
    quick.apply()
    assert quick.settle() == 0
    quick.beats(NOW + 6000)
    quick.apply()
    assert quick.settle() == 0
    quick.carry(found((0, 8), instance=2))
    quick.apply()
    assert quick.settle() == 0


def test_a_heartbeat_and_a_report_judge_no_window_again_that_they_do_not_change(quick: Story) -> None:
    quick.hello(2, time=NOW - 30_000)
    for at in range(20):
        window, numbers = W + at % 10 * WINDOW_MS, (9 * at, 9 * at + 8)
        quick.report(at, numbers, instance=2, window=window, closed=NOTHING, time=NOW - 30_000)
        quick.count("dc1", found(numbers, instance=2, window=window))
    quick.beats(NOW - 20_000)
    quick.apply()
    assert [quick.verdict(W + at * WINDOW_MS) for at in (0, 5)] == ["pending", "pending"]
    quick.beats(NOW - 14_000)
    quick.apply_only()
    assert quick.settle() <= 1, "the newest window is not over yet"
    quick.report(20, (180, 188), instance=2, window=W, closed=NOTHING, time=NOW - 10_000)
    quick.apply_only()
    assert quick.settle() == 1


def test_a_window_names_some_silent_instances_and_counts_the_others(quick: Story) -> None:
    for instance in range(100, 130):
        quick.hello(instance, time=NOW if instance > 100 else W)
    quick.whole()
    for instance in range(100, 130):
        quick.report(0, instance=instance, closed=W if instance < 129 else NOTHING, time=NOW)
    quick.hello(200, time=W)
    quick.report(0, instance=200, closed=W + 1, time=W)
    quick.beats(NOW + 6000)
    reasons = quick.apply().window()["reasons"]
    assert reasons[0].startswith("1 more instances are silent or miss a report")
    assert reasons[1] == "instance 129 (shop on web-129 in dc1) has closed nothing and may send more"
    assert (len(reasons), reasons[-1]) == (12, "20 more instances may send more")
    assert quick.verdict() == "unknown", "of one of the others nothing was heard for long"
    quick.accept(service="shop")
    quick.settle()
    reasons = quick.window()["reasons"]
    assert (quick.verdict(), len(reasons)) == ("complete", 11)
    assert reasons[-1] == "21 more silent instances are accepted"


def test_a_folded_window_gives_the_same_answer_and_unfolds_for_what_is_late(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9), closed=W + WINDOW_MS, failed=((10, 11),))
    story.carry(found((0, 11)))
    story.beats()
    story.apply()
    before = story.answer()
    story.options = replace(OPTIONS, clock_ms=lambda: NOW + 25 * 3_600_000)
    with story.store.writing() as session:
        expire(session, story.options)
    assert story.answer() == before
    story.report(1, (12, 14))
    story.carry(found((12, 14)))
    story.beats(NOW + 6000)
    window = story.apply().window()
    assert (window["verdict"], window["acknowledged"], window["revision"]) == ("complete", 13, 1)
    story.count("dc1", SequenceCounts())
    story.count("offline", found((3, 3)))
    story.load(SequenceCounts())
    story.beats(NOW + 12_000)
    assert story.apply().findings()[0] == ("duplicate", "offline", [[3, 3]])


def test_windows_expire_and_do_not_come_back(story: Story) -> None:
    story.whole()
    story.apply()
    story.options = replace(OPTIONS, clock_ms=lambda: NOW + 91 * 24 * 3_600_000)
    with story.store.writing() as session:
        expire(session, story.options)
    story.carry(found((0, 9), instance=4))
    story.apply()
    with story.store.reading() as session:
        assert answers.bad(session, story.options, None, 10) == []


def test_an_expired_window_is_unknown_and_an_incomplete_one_stays(quick: Story) -> None:
    quick.whole()
    quick.hello(2)
    quick.report(0, (0, 9), instance=2, window=W + WINDOW_MS)
    quick.beats(NOW + 12_000)
    assert quick.apply().verdict(W + WINDOW_MS) == "incomplete"
    quick.options = replace(OPTIONS, clock_ms=lambda: NOW + OPTIONS.keep_ms + WINDOW_MS)
    with quick.store.writing() as session:
        expire(session, quick.options)
    assert [quick.verdict(), quick.verdict(W + WINDOW_MS)] == ["unknown", "incomplete"]
    assert "the window is older than --keep-days" in quick.window()["reasons"][0]


def test_a_window_of_a_far_time_that_expires_blinds_nobody(quick: Story) -> None:
    far = W + 100 * 365 * 144 * WINDOW_MS
    quick.hello(66)
    quick.report(0, (0, 0), instance=66, window=far, time=far)
    quick.beats()
    quick.apply()
    later = NOW + OPTIONS.keep_ms + 24 * 3_600_000
    quick.options = replace(OPTIONS, clock_ms=lambda: later)
    with quick.store.writing() as session:
        expire(session, quick.options)
    window = later // WINDOW_MS * WINDOW_MS - 10 * WINDOW_MS
    quick.hello()
    quick.report(0, (0, 9), window=window)
    quick.carry(found((0, 4), window=window))
    quick.beats(later)
    assert quick.apply().verdict(window) == "incomplete"


def test_the_bad_windows_are_listed_over_all_time_the_worst_first(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=W + WINDOW_MS, closed=W)
    story.report(1, (5, 6), instance=2, window=W + 2 * WINDOW_MS)
    story.carry(found((0, 4), instance=2, window=W + WINDOW_MS))
    story.carry(found((5, 5), instance=2, window=W + 2 * WINDOW_MS))
    story.count("dc1", found((0, 3), instance=60), topic="Other", partition=3)
    story.beats(NOW + 6000)
    story.apply()
    with story.store.reading() as session:
        listed = [(bad.topic, bad.window.verdict) for bad in answers.bad(session, OPTIONS, None, 10)]
        assert listed == [("PageView", "incomplete"), ("Other", "pending")]
        assert [bad.topic for bad in answers.bad(session, OPTIONS, "Other", 10)] == ["Other"]
        assert len(answers.bad(session, OPTIONS, None, 1)) == 1


@pytest.mark.parametrize("failed", [True, False])
def test_a_report_of_all_numbers_there_are_does_not_stop_the_auditor(quick: Story, failed: bool) -> None:
    every = ((0, FOR_EVER),)
    story = Story(quick.store)
    acknowledged, lost = ((), every) if failed else (every, ())
    told = ReportedWindow(TOPIC, W, SequenceRanges(acknowledged), SequenceRanges(lost))
    story.hello()
    story.report(0, windows=[told])
    story.beats()
    assert story.apply().verdict() != "complete"


@pytest.mark.parametrize("other", [{"topic": "x\0y"}, {"topic": "x" * 300}, {"instance": 1 << 70}])
def test_what_the_database_cannot_hold_is_a_strangers_and_stops_nobody(
    story: Story, other: dict[str, Any]
) -> None:
    story.hello(**other)
    story.whole()
    assert story.apply().verdict() == "complete"
    if "instance" in other:
        assert story.rejected_records() == [("Hello", "it cannot be read")]


def test_a_stranger_is_listed_however_long_the_name_of_its_topic(quick: Story) -> None:
    quick.carry(found((0, 0), instance=9, window=0), topic="t" * 240)
    quick.apply()
    assert ("Count", f"events of topic {'t' * 240}"[:200]) in quick.rejected_records()


def test_an_origins_audit_log_that_begins_anew_loses_the_time_until_what_it_goes_on_with(
    quick: Story,
) -> None:
    place = quick.place((SAID, "dc1"))
    with quick.store.writing() as session:
        ledger.note_applied(session, place, 1000)
        ledger.note_reports_lost(session, place, 0, NOW)
    with quick.store.reading() as session:
        (lost,) = session.scalars(select(LostReportsRow))
        assert (lost.at, lost.to, lost.until) == (1000, 0, NOW)
        assert [row.applied_through for row in session.scalars(select(TierRow))] == [0]
    with quick.store.writing() as session:
        ledger.note_reports_lost(session, place, 0, NOW)
    with quick.store.reading() as session:
        assert len(session.scalars(select(LostReportsRow)).all()) == 1, "it goes on where it was heard to"


@pytest.mark.parametrize(
    ("throughs", "anew"), [([], 0), ([5, 9], 0), ([5, 9, 4], 1), ([5, 4, 9], 0), ([5, None], 0)]
)
def test_an_audit_topic_that_ends_before_where_it_ended_once_has_begun_anew(
    throughs: list[int | None], anew: bool
) -> None:
    checkpoints = Checkpoints(
        Checkpoint(serial, NOW + serial, through) for serial, through in enumerate(throughs)
    )
    assert checkpoints.restarted == anew
