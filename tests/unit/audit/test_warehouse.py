"""Verdicts that follow from the warehouse: rejected messages, rows without a header, loads that are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import func, select

from millrace.errors import MillraceError
from millrace_audit.answer import Completeness, LoadHour, NewestLoad, to_json, utc
from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.service.acceptance import accept_rejected, replace_loads
from millrace_audit.auditor.store import AuditStore, LoadPartRow, WindowRow
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    ForeignCount,
    HourRows,
    LoadNumber,
    RejectedMessages,
    UnkeyedRows,
    editions_hash,
)
from tests.unit.audit.story import NOW, OPTIONS, TOPIC, Story, W, found

HOUR = W - W % HOUR_MS
WHY = "schema id 99 is not in the registry"
NOBODY = SequenceCounts()


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> Story:
    sqlite = request.param == "sqlite"
    url = "sqlite://" if sqlite else request.getfixturevalue("postgres_url")
    return Story(stores(url), replace(OPTIONS, carried=".*"))


def unkeyed(story: Story, *, loaded: int, rejected: int = 0, sent: int = 50, **load: object) -> None:
    """Messages without a header that reach the aggregate cluster, and a load of them."""
    foreign = [ForeignCount(W, sent, 7)]
    story.count("dc1", NOBODY, foreign=foreign)
    story.count("offline", NOBODY, foreign=foreign)
    aside = [RejectedMessages(W, W, rejected, 0, WHY)] if rejected else []
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, loaded)], rejected=aside, **load)  # type: ignore[arg-type]
    story.beats()


def accepted(story: Story, load: int) -> int:
    with story.store.writing() as session:
        decision, messages = accept_rejected(session, story.options, TOPIC, load, "of a test", "me")
    story.decide(decision)
    story.apply()
    return messages


def replaced(story: Story) -> list[int]:
    with story.store.writing() as session:
        decision, loads = replace_loads(session, story.options, TOPIC, "the disk burnt down", "me")
    story.decide(decision)
    story.apply()
    return loads


def changed(story: Story, since: str = "") -> tuple[list[int], str]:
    with story.store.reading() as session:
        found = answers.changes(session, TOPIC, since)
    return [int(hour.timestamp()) * 1000 for hour in found.hours], found.cursor


# Rejected messages.


def test_an_hour_with_rejected_messages_is_incomplete_until_an_operator_gives_them_up(story: Story) -> None:
    unkeyed(story, loaded=0, rejected=50)
    window = story.apply().window()
    assert (window["verdict"], window["rejected"], window["findings"]) == ("incomplete", 50, [])
    (reason,) = (text for text in window["reasons"] if "rejected" in text)
    assert reason == (
        f"load 1 rejected 50 messages ({WHY}): give them up with --accept-rejected 1, or reload them once"
        ' they can be decoded: `millrace reload PageView --loads 1 --reason "…"`'
    )
    assert accepted(story, 1) == 50
    window = story.window()
    assert (window["verdict"], window["rejected"]) == ("carried", 50)
    assert f"load 1 rejected 50 messages ({WHY}); accepted: of a test" in window["reasons"]


def test_rejected_events_with_a_header_are_carried_at_best_once_they_are_given_up(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.load(found((0, 7)), rejected=[RejectedMessages(W, W, 2, 2, WHY)])
    story.beats()
    assert story.apply().verdict() == "incomplete"
    assert story.findings() == [("missing", "warehouse", [[8, 9]])]
    accepted(story, 1)
    assert (story.verdict(), story.findings()) == ("carried", [])


def test_what_is_lost_beside_the_rejected_events_stays_missing(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.load(found((0, 6)), rejected=[RejectedMessages(W, W, 2, 2, WHY)])
    story.beats()
    story.apply()
    accepted(story, 1)
    assert (story.verdict(), story.findings()) == ("incomplete", [("missing", "warehouse", [[7, 9]])])


def test_a_re_load_that_decodes_them_ends_it(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    story.load(found((0, 7)), rejected=[RejectedMessages(W, W, 2, 2, WHY)])
    story.beats()
    assert story.apply().verdict() == "incomplete"
    story.load(found((8, 9)), source=LoadNumber(1, 2), hours=[HourRows(HOUR, 10)])
    assert (story.apply().verdict(), story.window()["rejected"]) == ("complete", 0)


def test_what_a_later_edition_rejects_is_not_given_up_with_the_one_before(story: Story) -> None:
    unkeyed(story, loaded=40, rejected=10)
    story.apply()
    accepted(story, 1)
    story.load(
        NOBODY,
        source=LoadNumber(1, 2),
        unkeyed=[UnkeyedRows(W, -5)],
        rejected=[RejectedMessages(W, W, 15, 0, WHY)],
    )
    assert story.apply().verdict() == "incomplete"


def test_messages_that_may_be_in_any_window_make_all_of_them_incomplete(story: Story) -> None:
    story.whole()
    story.load(NOBODY, rejected=[RejectedMessages(W - WINDOW_MS, W + WINDOW_MS, 3, 0, "not known which")])
    answer = story.apply().answer(W - 2 * WINDOW_MS, 4)
    assert [window["verdict"] for window in answer["windows"]] == [
        "complete",
        "incomplete",
        "incomplete",
        "incomplete",
    ]
    accepted(story, 2)
    assert story.answer(W - WINDOW_MS, 3)["verdict"] == "carried"


def test_only_what_was_rejected_can_be_given_up(story: Story) -> None:
    story.whole()
    story.apply()
    with pytest.raises(MillraceError, match="load 7 of topic PageView has no rejected messages"):
        accepted(story, 7)


# Rows without a header.


@pytest.mark.parametrize(
    ("loaded", "finding"),
    [(50, []), (48, [("missing", "warehouse", 2)]), (53, [("duplicate", "warehouse", 3)])],
)
def test_messages_without_a_header_are_compared_with_the_rows_that_were_loaded(
    story: Story, loaded: int, finding: list[object]
) -> None:
    unkeyed(story, loaded=loaded)
    assert story.apply().findings() == finding
    assert story.verdict() == ("incomplete" if finding else "carried")
    assert story.window()["foreign"] == {"dc1": 50, "offline": 50, "warehouse": loaded}


def test_what_is_produced_into_the_aggregate_cluster_is_compared_too(story: Story) -> None:
    story.count("offline", NOBODY, cluster="offline", foreign=[ForeignCount(W, 50, 7)])
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, 49)])
    story.beats()
    assert story.apply().findings() == [("missing", "warehouse", 1)]


def test_rows_without_a_header_that_the_published_table_lacks_or_has_twice_are_found(story: Story) -> None:
    unkeyed(story, loaded=50)
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 50)])
    assert story.apply().verdict() == "carried"
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 49)])
    assert story.apply().findings() == [("missing", "table", 1)]
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 52)])
    assert story.apply().findings() == [("duplicate", "table", 2)]


def test_rows_in_no_hours_partition_are_no_matter_of_the_hours_table(story: Story) -> None:
    foreign = [ForeignCount(W, 50, 7)]
    story.count("dc1", NOBODY, foreign=foreign)
    story.count("offline", NOBODY, foreign=foreign)
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, 50, 50)])
    story.beats()
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 0)])
    assert (story.apply().verdict(), story.findings()) == ("carried", [])


def test_an_hour_with_tombstones_is_carried_and_a_lost_tombstone_is_missing(story: Story) -> None:
    foreign = [ForeignCount(W, 50, 7)]
    story.count("dc1", NOBODY, foreign=foreign)
    story.count("offline", NOBODY, foreign=foreign)
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, 50, 8)], hours=[HourRows(HOUR, 42)])
    story.beats()
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 42)])
    assert (story.apply().verdict(), story.findings()) == ("carried", [])
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, -1, -1)], source=LoadNumber(1, 2), hours=[HourRows(HOUR, 42)])
    assert story.apply().findings() == [("missing", "warehouse", 1)]


def test_erased_rows_without_a_header_are_not_missing(story: Story) -> None:
    unkeyed(story, loaded=50)
    less = {"unkeyed": [UnkeyedRows(W, -4)], "source": LoadNumber(1, 2)}
    story.load(NOBODY, hours=[HourRows(HOUR, 46, erased=4)], **less)  # type: ignore[arg-type]
    assert story.apply().verdict() == "carried"
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, -1)], source=LoadNumber(1, 3), hours=[HourRows(HOUR, 45, 4)])
    assert story.apply().findings() == [("missing", "warehouse", 1)]


@pytest.mark.parametrize("hour", [HOUR, NOTHING])
def test_rows_without_a_header_that_expire_deleted_before_they_were_counted_are_not_known(
    story: Story, hour: int
) -> None:
    unkeyed(story, loaded=46, hours=[HourRows(HOUR, 50), HourRows(hour, 50, uncounted=4)])
    story.publish(NOBODY, unkeyed=[UnkeyedRows(W, 50)])
    assert (story.apply().verdict(), story.findings()) == ("unknown", [])
    (reason, *_) = story.completeness().windows[0].reasons
    assert reason == (
        "4 seem missing at warehouse (messages without a header), but `millrace expire` deleted the files"
        " with 4 rows without a header of load 1 before `millrace audit-warehouse` counted them:"
        f' `millrace reload {TOPIC} --loads 1 --reason "…"`'
    )
    story.load(NOBODY, unkeyed=[UnkeyedRows(W, 4)], source=LoadNumber(1, 2), hours=[HourRows(HOUR, 50)])
    assert (story.apply().verdict(), story.findings()) == ("carried", [])


@pytest.mark.parametrize("hour", [HOUR, NOTHING])
def test_more_rows_than_expire_deleted_before_they_were_counted_are_missing(story: Story, hour: int) -> None:
    unkeyed(story, loaded=40, hours=[HourRows(HOUR, 44), HourRows(hour, 44, uncounted=4)])
    assert story.apply().findings() == [("missing", "warehouse", 6)]


@pytest.mark.parametrize("hour", [HOUR, NOTHING])
def test_rows_that_a_later_edition_has_not_either_are_missing_although_none_was_counted_before(
    story: Story, hour: int
) -> None:
    unkeyed(story, loaded=46, hours=[HourRows(hour, 50, uncounted=4)])
    assert story.apply().verdict() == "unknown"
    story.load(NOBODY, unkeyed=[], source=LoadNumber(1, 2), hours=[HourRows(HOUR, 46)])
    assert story.apply().findings() == [("missing", "warehouse", 4)]


def test_a_record_of_the_version_before_says_nothing_of_rows_without_a_header(story: Story) -> None:
    unkeyed(story, loaded=0, is_of_before=True)
    assert (story.apply().verdict(), story.findings()) == ("carried", [])
    assert story.answer()["hours"] == [{"hour": utc_text(HOUR), "loads": []}]


def utc_text(time: int) -> str:
    return utc(time).isoformat().replace("+00:00", "Z")


# The loads that an hour was judged by.


def test_the_answer_names_the_loads_of_each_hour_by_their_newest_edition(story: Story) -> None:
    story.whole()
    story.load(
        NOBODY,
        source=LoadNumber(1, 2, sha256="second"),
        hours=[HourRows(HOUR, 10), HourRows(HOUR + HOUR_MS, 4)],
        rejected=[RejectedMessages(W, W, 2, 0, WHY)],
    )
    story.load(NOBODY, source=LoadNumber(2, 1, part=1, parts=2), hours=[HourRows(HOUR, 5)])
    answer = story.apply().completeness(W, 12)
    assert answer.hours is not None
    assert [hour.start for hour in answer.hours] == [utc(HOUR), utc(HOUR + HOUR_MS)]
    assert answer.hours[0].loads == [LoadHour(1, 2, "second", 10, 2)], "load 2 is told in half"
    assert answer.hours[1].loads == [LoadHour(1, 2, "second", 4, 0)]
    assert answer.newest_load == NewestLoad(1, "")


# Loads that are gone.


def three_loads(story: Story) -> None:
    """Three loads of one window, the third one also of the next hour."""
    story.hello()
    story.report(0, (0, 29))
    story.count("dc1", found((0, 29)))
    story.count("offline", found((0, 29)))
    for load in (1, 2, 3):
        counts = found((10 * (load - 1), 10 * load - 1))
        story.load(counts, source=LoadNumber(load, sha256=f"sha{load}"), whole=load == 3)
    story.beats()
    story.state(3, "sha3")


def test_a_warehouse_from_an_older_copy_makes_the_hours_of_its_lost_loads_incomplete(story: Story) -> None:
    three_loads(story)
    assert story.apply().verdict() == "complete"
    story.state(2, "sha2")
    window = story.apply().window()
    assert window["verdict"] == "incomplete"
    assert window["reasons"] == [
        "load 3 was counted with 10 rows and is gone: the warehouse's newest load is 2; restore a newer copy,"
        ' or load again and replace: `millrace audit PageView --replace-loads --reason "…"`'
    ]
    story.state(3, "sha3")
    assert story.apply().verdict() == "complete", "a newer copy was restored"


def test_a_load_that_was_made_in_place_of_a_lost_one_counts_once_an_operator_says_so(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.state(2, "sha2")
    story.load(found((20, 28)), source=LoadNumber(3, sha256="other"), whole=True)
    story.load(found((29, 29)), source=LoadNumber(4, sha256="sha4"))
    story.state(4, "sha4")
    assert story.apply().verdict() == "incomplete"
    assert (
        "LoadCount",
        f"load 3 of topic {TOPIC} was counted from another manifest",
    ) in story.rejected_records()
    assert replaced(story) == [3]
    assert (story.verdict(), story.findings()) == ("complete", [])
    assert story.completeness().newest_load == NewestLoad(4, "sha4")
    with pytest.raises(MillraceError, match="no load of topic PageView is lost"):
        replaced(story)


def test_what_the_new_loads_lack_is_missing_after_they_replaced_the_lost_ones(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.load(found((20, 27)), source=LoadNumber(3, sha256="other"))
    assert story.apply().verdict() == "incomplete"
    replaced(story)
    assert story.findings() == [("missing", "warehouse", [[28, 29]])]


def test_until_the_lost_offsets_are_loaded_again_their_events_are_not_loaded(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.state(2, "sha2")
    story.apply()
    assert replaced(story) == [3]
    assert story.verdict() == "pending"
    story.load(found((20, 29)), source=LoadNumber(3, sha256="other"))
    assert story.apply().verdict() == "complete"


def test_a_load_that_is_remade_twice_counts_as_it_was_made_last(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.load(found((20, 24)), source=LoadNumber(3, sha256="other"))
    story.load(found((25, 29)), source=LoadNumber(4, sha256="more"))
    story.load(found((20, 29)), source=LoadNumber(3, sha256="another"))
    story.apply()
    replaced(story)
    assert (story.verdict(), story.findings()) == ("complete", [])


def test_a_folder_without_any_load_has_lost_them_all(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.state(0)
    assert story.apply().verdict() == "incomplete"
    assert len(story.window()["reasons"]) == 3


def test_other_editions_in_the_folder_make_the_hours_of_those_counted_unknown(story: Story) -> None:
    three_loads(story)
    story.load(NOBODY, source=LoadNumber(2, 2, sha256="e2"), hours=[HourRows(HOUR, 10)])
    story.state(3, "sha3", editions=editions_hash({2: 2}))
    assert story.apply().verdict() == "complete"
    story.state(3, "sha3", editions=editions_hash({}))
    assert story.apply().verdict() == "unknown"
    assert "the warehouse has other editions" in story.window()["reasons"][0]
    story.state(3, "sha3", editions=editions_hash({2: 2}))
    assert story.apply().verdict() == "complete"


def test_a_load_whose_counts_are_forgotten_cannot_be_replaced(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.options = replace(story.options, clock_ms=lambda: NOW + 100 * 24 * HOUR_MS)
    with story.store.writing() as session:
        expire(session, story.options)
    with story.store.reading() as session:
        assert session.scalar(select(func.count()).select_from(LoadPartRow)) == 0
    story.state(2, "sha2")
    story.apply()
    with pytest.raises(MillraceError, match="the auditor has forgotten what load 3"):
        replaced(story)


def test_another_manifest_of_a_later_edition_makes_its_hours_unknown(story: Story) -> None:
    three_loads(story)
    story.load(NOBODY, source=LoadNumber(2, 2, sha256="e2"), hours=[HourRows(HOUR, 10)])
    assert story.apply().verdict() == "complete"
    story.load(found((1, 1)), source=LoadNumber(2, 2, sha256="other"))
    assert (story.apply().verdict(), story.findings()) == ("unknown", [])
    assert (
        "LoadCount",
        f"load 2 of topic {TOPIC} was counted from another manifest",
    ) in story.rejected_records()


def test_a_load_of_the_version_before_is_told_again_with_its_rows(story: Story) -> None:
    unkeyed(story, loaded=0, is_of_before=True)
    assert (story.apply().verdict(), story.answer()["hours"][0]["loads"]) == ("carried", [])
    aside = [RejectedMessages(W, W, 2, 0, WHY)]
    for _ in range(2):
        story.load(NOBODY, source=LoadNumber(1), unkeyed=[UnkeyedRows(W, 48)], rejected=aside)
        window = story.apply().window()
        assert (window["verdict"], window["findings"], window["rejected"]) == ("incomplete", [], 2)
        assert window["foreign"]["warehouse"] == 48
        (load,) = story.answer()["hours"][0]["loads"]
        assert (load["rows"], load["rejected"]) == (48, 2)
    story.load(NOBODY, source=LoadNumber(1, 2), unkeyed=[UnkeyedRows(W, 1)])
    assert story.apply().findings() == [("missing", "warehouse", 1)], "from now on they are compared"


# Topics that nobody counts, and tables that are gone.


def test_a_topic_that_no_reader_counts_is_unknown(story: Story) -> None:
    story.beats()
    story.load(NOBODY, topic="Uncounted")
    answer = story.apply().completeness(topic="Uncounted")
    assert (answer.verdict, answer.proven) == ("unknown", False)
    reason = "no audit reader counts topic Uncounted: `millrace audit-reader --topics …`"
    assert answer.windows[0].reasons[0] == reason


@pytest.mark.parametrize(("trouble", "why"), [("", "it is not in the catalog"), ("a file is gone",) * 2])
def test_a_published_table_that_is_gone_is_doubted_after_a_quarter_of_an_hour(
    story: Story, trouble: str, why: str
) -> None:
    three_loads(story)
    later = found((0, 4), instance=2, window=W + WINDOW_MS)
    story.count("dc1", later)
    story.count("offline", later)
    story.load(later, source=LoadNumber(4))
    story.beats(NOW + 12_000)
    story.publish(found((0, 29)))
    story.state(4, exists=True)
    assert story.apply().verdict() == "complete"
    story.state(4, exists=bool(trouble), trouble=trouble)
    story.options = replace(story.options, clock_ms=lambda: NOW + 14 * 60_000)
    assert story.apply().verdict() == "complete", "a catalog is restarted now and then"
    story.options = replace(story.options, clock_ms=lambda: NOW + 15 * 60_000)
    window = story.apply().window()
    assert window["verdict"] == "unknown"
    assert f"({why}): `millrace verify PageView --warehouse WAREHOUSE`" in window["reasons"][0]
    assert story.verdict(W + WINDOW_MS) == "carried", "it is not in the table"
    with story.store.reading() as session:
        open_windows = select(func.count()).where(~WindowRow.is_final, WindowRow.topic == TOPIC)
        assert session.scalar(open_windows) == 1, "what is not published is judged, and over"
    story.state(4, exists=True, time=NOW + 15 * 60_000)
    assert story.apply().verdict() == "complete"


def test_without_a_published_hour_no_table_is_missed(story: Story) -> None:
    three_loads(story)
    story.apply()
    story.options = replace(story.options, clock_ms=lambda: NOW + HOUR_MS)
    story.beats(NOW + HOUR_MS)
    assert story.apply().verdict() == "complete"


# Hours whose verdict has changed.


def test_an_hour_that_is_taken_back_is_named_by_the_changes(story: Story) -> None:
    three_loads(story)
    story.apply()
    hours, cursor = changed(story)
    assert hours == [], "to be final for the first time is no change"
    story.state(2, "sha2")
    story.apply()
    hours, after = changed(story, cursor)
    assert (hours, after != cursor) == ([HOUR], True)
    assert changed(story, after) == ([], after)
    story.state(3, "sha3")
    story.apply()
    assert changed(story, after)[0] == [HOUR]
    assert changed(story)[0] == changed(story, "otherdatabase.999")[0] == [HOUR]


def live_through(story: Story) -> datetime | None:
    """Return the time in the answers about the topic and about all topics."""
    with story.store.reading() as session:
        (topic,) = answers.topics(session, story.options)
        answer = answers.completeness(session, story.options, TOPIC, W, W + WINDOW_MS)
    assert answer.live_through == topic.live_through
    assert Completeness.from_json(to_json(answer)).live_through == answer.live_through
    return answer.live_through


def test_the_answers_name_the_time_through_which_branch_live_shows_the_rows(story: Story) -> None:
    story.whole()
    story.apply()
    assert live_through(story) is None, "no reader of the warehouse has spoken"
    story.state(1, exists=True, live_through=NOW - WINDOW_MS)
    story.warehouse_beat(NOW)
    story.apply()
    assert live_through(story) == utc(NOW - WINDOW_MS)
    story.state(1, exists=True)
    story.apply()
    assert live_through(story) is None, "the branch was switched off"
    story.state(1, exists=True, live_through=-(1 << 62))
    story.apply()
    assert live_through(story) is None, "no clock shows that"


def test_a_branch_that_lacks_no_row_is_known_up_to_the_last_look_at_it(story: Story) -> None:
    story.whole()
    story.state(1, exists=True, live_through=FOR_EVER)
    story.apply()
    assert live_through(story) is None, "nobody says when this was so"
    story.warehouse_beat(NOW - 5000)
    story.apply()
    assert live_through(story) == utc(NOW - 5000)


def test_a_state_of_branch_live_changes_no_verdict(story: Story) -> None:
    story.whole()
    story.apply()
    before = story.window()
    story.state(1, exists=True, live_through=W)
    assert story.apply().window() == before
