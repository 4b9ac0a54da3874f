"""Operators' decisions as records, evaluated when windows are judged, for any order of the partitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update

from millrace.service.database import open_database
from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.lease import LEASE_S, Lease, LeaseHeld
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.decisions import WRITE_AGAIN_MS, due_decisions, is_disowned, reason_of
from millrace_audit.auditor.service.acceptance import first_lost
from millrace_audit.auditor.store import AuditPosition, AuditStore, DecisionRow, ProducerRow, Row
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import (
    ACCEPT,
    ACCEPT_REJECTED,
    DISOWN,
    FOR_EVER,
    NOTHING,
    OFFLINE,
    REPLACE_LOADS,
    Decision,
    ForeignCount,
    LoadNumber,
    RejectedMessages,
    UnkeyedRows,
)
from millrace_audit.reports.seals import seal_of
from tests.support import ROUNDS, Clock
from tests.unit.audit.story import NOW, OPTIONS, OWN, TOPIC, Story, W, found, key_of
from tests.unit.audit.test_ledger import everything, troubled

LATER = W + 2 * WINDOW_MS
NOBODY = SequenceCounts()
Stores = Callable[[str], AuditStore]


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Stores) -> Story:
    sqlite = request.param == "sqlite"
    return Story(stores("sqlite://" if sqlite else request.getfixturevalue("postgres_url")))


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database that two processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    url: str = request.getfixturevalue("postgres_url")
    open_database(url, Row.metadata.drop_all).dispose()
    return url


def decision(kind: str, number: int, **of: Any) -> Decision:
    common: dict[str, Any] = {"who": "me", "reason": f"reason {number}", "written": NOW}
    return Decision(time=W + number, id=f"{number:032}", kind=kind, **common, **of)


def decided(story: Story) -> None:
    """Return records in which each kind of decision matters, each after the records that it concerns."""
    troubled(story)
    story.decide(decision(ACCEPT, 1, instance=4))
    story.decide(decision(ACCEPT, 2, service="shop", server="web-30", before=LATER))
    for instance in (60, 61):
        story.hello(instance)
        story.report(0, (0, 4), instance=instance, closed=W, time=W)
        story.carry(found((0, 9), instance=instance))
    story.beats(NOW + 36_000)
    story.decide(decision(ACCEPT, 3, service="shop", server="web-60", before=LATER))
    story.decide(decision(ACCEPT, 4, service="shop", server="web-61", before=LATER))
    story.decide(decision(ACCEPT, 5, instance=61))
    story.report(1, (5, 9), instance=60, closed=W + WINDOW_MS, time=LATER)
    story.hello(66)
    story.report(0, (0, 99), instance=66, closed=W)
    story.decide(decision(DISOWN, 6, service="shop", server="web-66", before=LATER))
    story.report(1, (100, 199), instance=66, closed=W + WINDOW_MS, time=LATER)
    rejected = [RejectedMessages(W, W, 3, 0, "no value")]
    for sha256 in ("first", "second"):
        number = LoadNumber(story.loads + (sha256 == "first"), sha256=sha256)
        story.load(NOBODY, source=number, rejected=rejected)
        story.loads = number.load
        of = {"topic": TOPIC, "load": number.load}
        if sha256 == "first":
            story.decide(decision(ACCEPT_REJECTED, 7, edition=1, sha256=sha256, **of))
        else:
            story.decide(decision(REPLACE_LOADS, 8, sha256="first", **of))
    story.decide(decision(ACCEPT, 9, service="shop", server="web-66"))
    story.beats(NOW + 42_000)


def resumed(story: Story) -> None:
    """Return windows that an acceptance makes final, until the instance reports again, and ends."""
    story.whole()
    for instance in (2, 3, 4):
        story.hello(instance, time=W)
        story.report(0, (0, 4), instance=instance, closed=W)
        story.carry(found((0, 9), instance=instance))
    story.beats(NOW + 6000)
    story.decide(decision(ACCEPT, 1, service="shop", before=LATER))
    story.decide(decision(ACCEPT, 2, instance=4))
    story.beats(NOW + 12_000)
    story.report(1, instance=2, closed=W + WINDOW_MS, time=LATER)
    story.report(1, (5, 9), instance=4, closed=W + WINDOW_MS, time=LATER)
    story.beats(NOW + 18_000)
    story.report(2, instance=2, closed=FOR_EVER, time=LATER)
    story.decide(decision(ACCEPT, 3, service="shop", server="web-3", before=LATER))
    story.beats(NOW + 24_000)
    story.decide(decision(DISOWN, 4, service="shop", server="web-4", before=W))
    for instance in (7, 8):
        story.hello(instance, time=W)
        story.report(0, (0, 4), instance=instance, closed=W)
        story.carry(found((0, 9), instance=instance))
        story.decide(decision(ACCEPT, instance, instance=instance, before=LATER))
    story.beats(NOW + 36_000)
    story.report(1, (5, 9), instance=7, closed=W + WINDOW_MS, time=LATER)
    story.beats(NOW + 42_000)


@pytest.fixture(scope="module", params=[decided, resumed])
def told(request: pytest.FixtureRequest) -> Iterator[Story]:
    """A story whose partitions were applied one after another."""
    story = Story(AuditStore("sqlite://"))
    request.param(story)
    yield story.apply()
    story.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("begun", ["empty", "half"])
def test_decisions_take_effect_alike_in_any_order_of_the_partitions(
    told: Story, story: Story, seed: int, begun: str
) -> None:
    dice = random.Random(seed)
    assert everything(told.interleaved(story.store, dice, from_half=begun == "half")) == everything(told)


class Process:
    """One of two auditors on a database. It applies records from the positions in the database."""

    def __init__(self, url: str, host: str, clock: Clock, story: Story) -> None:
        lease = Lease(clock)
        lease._host = host
        self._store, self._story = AuditStore(url, lease), story

    def step(self, dice: random.Random) -> bool:
        """Apply some records of a partition, and perhaps judge; return True when all records are applied."""
        self._store.renew()
        left = {key: at for key in self._story.partitions if (at := self._left(key))}
        if left:
            key = dice.choice(sorted(left))
            some = left[key][: dice.randint(1, 5)]
            with self._store.writing() as session:
                place = self._story.place(key)
                ledger.apply(session, place, some, NOW)
                row = session.get(AuditPosition, (self._name(key), 0)) or AuditPosition(
                    topic_id=self._name(key), partition=0
                )
                session.add(row)
                row.next_offset = some[-1].offset + 1
        if not left or dice.random() < 0.2:
            Judging(self._store, OPTIONS).turn(60)
        return not left

    def _left(self, key: tuple[str, str]) -> list[Any]:
        with self._store.reading() as session:
            row = session.get(AuditPosition, (self._name(key), 0))
        return [
            heard for heard in self._story.partitions[key] if row is None or heard.offset >= row.next_offset
        ]

    def _name(self, key: tuple[str, str]) -> str:
        return "/".join(key)

    def close(self) -> None:
        self._store.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_two_auditors_that_lose_the_lease_at_random_come_to_the_same_answer(
    told: Story, empty_url: str, seed: int
) -> None:
    dice, clock, switches = random.Random(seed), Clock(), 0
    one, other = (Process(empty_url, host, clock, told) for host in ("a", "b"))
    is_done = False
    while not is_done:
        is_done = one.step(dice)
        if dice.random() < 0.1:
            with pytest.raises(LeaseHeld):
                other.step(dice)
            clock.now += LEASE_S
            other.step(dice)
            with pytest.raises(LeaseHeld):
                one.step(dice)
            one, other = other, one
            switches += 1
    assert switches
    one.close()
    other.close()
    store = AuditStore(empty_url)
    assert everything(Story(store)) == everything(told)
    store.close()


def test_an_instance_accepted_by_its_service_is_awaited_again_once_it_reports_later(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, closed=W)
    story.carry(found((0, 4), instance=2))
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "unknown"
    assert story.accept(service="shop", before=LATER) == [2]
    story.settle()
    assert story.verdict() == "complete"
    story.report(1, instance=2, closed=W, time=LATER)
    assert story.apply().verdict() in ("unknown", "pending"), "it runs, and may have more to report"
    story.report(2, instance=2, closed=FOR_EVER, time=LATER)
    story.beats(NOW + 12_000)
    assert story.apply().verdict() == "complete"
    assert not any("accepted" in reason for reason in story.window()["reasons"])


def test_the_reports_of_a_disowned_instance_are_kept_and_not_used(story: Story) -> None:
    story.whole()
    story.hello(6)
    story.report(0, (0, 4), instance=6, closed=W)
    story.apply()
    assert story.accept(service="shop", server="web-6", disown=True) == [6]
    story.report(1, (5, 9), instance=6, closed=W + WINDOW_MS, time=LATER)
    story.beats(NOW + 6000)
    assert (story.apply().verdict(), story.rejected_records()) == ("complete", [])


def test_an_instance_that_is_disowned_and_accepted_later_is_named_with_the_reason_of_the_disowning(
    story: Story,
) -> None:
    story.whole()
    story.hello(6)
    story.report(0, (0, 4), instance=6, closed=W)
    story.decide(decision(DISOWN, 1, instance=6))
    story.beats(NOW + 6000)
    story.apply()
    story.decide(decision(ACCEPT, 2, instance=6))
    story.apply()
    assert "reports of instance 6 (shop on web-6 in dc1) do not count: reason 1" in story.window()["reasons"]


@pytest.mark.parametrize("disown", [True, False])
def test_an_accepted_or_disowned_instance_that_goes_on_reporting_keeps_no_window_from_being_final(
    story: Story, disown: bool
) -> None:
    story.whole()
    story.hello(6)
    story.report(0, instance=6, closed=NOTHING)
    story.beats(NOW + 6000)
    story.apply()
    story.accept(instance=6, disown=disown)
    story.settle()
    assert story.verdict() == "complete"
    story.hello(6, seal=seal_of(key_of(6, 1)))
    story.report(1, instance=6, closed=NOTHING, time=LATER)
    story.apply_only()
    assert story.verdict() == "complete", "none of its news concerns the window"


def test_giving_up_a_loads_rejected_messages_does_not_give_up_those_of_a_load_in_its_place(
    story: Story,
) -> None:
    story.whole()
    story.count("dc1", NOBODY, foreign=[ForeignCount(W, 5, 7)])
    story.count("offline", NOBODY, foreign=[ForeignCount(W, 5, 7)])
    rejected, rows = [RejectedMessages(W, W, 3, 0, "no value")], [UnkeyedRows(W, 2)]
    story.load(NOBODY, source=LoadNumber(2, sha256="first"), rejected=rejected, unkeyed=rows)
    story.beats(NOW + 6000)
    given_up = decision(ACCEPT_REJECTED, 1, topic=TOPIC, load=2, edition=1, sha256="first")
    story.decide(given_up)
    assert story.apply().verdict() == "carried"
    story.load(NOBODY, source=LoadNumber(2, sha256="second"), rejected=rejected, unkeyed=rows)
    assert story.apply().verdict() == "incomplete", "load 2 is another one"
    story.decide(decision(REPLACE_LOADS, 2, topic=TOPIC, load=2, sha256="first"))
    story.decide(replace(given_up, written=NOW + 1))
    assert story.apply().verdict() == "incomplete", "no decision concerns its rejected messages yet"


def test_the_decisions_about_a_producer_are_found_without_reading_all_decisions(stores: Stores) -> None:
    query = select(ProducerRow.producer, reason_of()).where(~is_disowned())
    with stores("sqlite://").reading() as session:
        compiled = query.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        plan = [row[3] for row in session.execute(text(f"EXPLAIN QUERY PLAN {compiled}"))]
    assert "SCAN producers" in plan
    assert not [step for step in plan if step.startswith("SCAN decision")]


def test_a_decision_to_replace_loads_has_no_effect_where_no_load_is_lost(story: Story) -> None:
    story.whole()
    story.decide(decision(REPLACE_LOADS, 1, topic=TOPIC, load=1))
    assert story.apply().verdict() == "complete"
    cause = "load 1 of topic PageView with that manifest is not the first one that is lost"
    assert story.rejected_records() == [("Decision", cause)]


@pytest.mark.parametrize("load", [2, 3])
def test_an_old_record_replaces_no_loads_that_are_lost_after_its_decision_has_expired(
    story: Story, load: int
) -> None:
    story.whole()
    for sha256 in ("first", "second"):
        story.load(NOBODY, source=LoadNumber(2, sha256=sha256))
    replacing = decision(REPLACE_LOADS, 1, topic=TOPIC, load=2, sha256="first")
    story.decide(replacing)
    story.load(NOBODY, source=LoadNumber(3, sha256="first"))
    story.apply()
    story.load(NOBODY, source=LoadNumber(load, sha256="third"))
    story.apply()
    with story.store.writing() as session:
        assert first_lost(session, TOPIC) == load
        session.execute(delete(DecisionRow))
    story.decide(replacing)
    story.apply()
    with story.store.reading() as session:
        assert first_lost(session, TOPIC) == load


def test_a_decision_about_rejected_messages_is_kept_with_them_even_if_their_load_has_no_rows(
    story: Story,
) -> None:
    story.whole()
    rejected = [RejectedMessages(W, W, 3, 0, "no value")]
    story.load(NOBODY, source=LoadNumber(2, sha256="all"), rejected=rejected, unkeyed=[])
    story.decide(decision(ACCEPT_REJECTED, 1, topic=TOPIC, load=2, edition=1, sha256="all"))
    story.apply()
    with story.store.writing() as session:
        session.execute(update(DecisionRow).values(applied=NOW - 2 * OPTIONS.keep_ms))
        expire(session, OPTIONS)
        assert [row.load for row in session.scalars(select(DecisionRow))] == [2]


def test_a_decision_that_the_auditor_has_not_signed_has_no_effect(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.report(0, instance=2, closed=W)
    story.say(OWN, OFFLINE, decision(ACCEPT, 1, instance=2), None)
    assert story.apply().verdict() == "unknown"
    assert [kind for kind, _ in story.rejected_records()] == ["Decision"]


def test_a_decision_is_written_again_each_day_and_takes_effect_once(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.apply()
    story.accept(instance=2)
    with story.store.reading() as session:
        assert due_decisions(session, NOW + WRITE_AGAIN_MS) == []
        (again,) = due_decisions(session, NOW + WRITE_AGAIN_MS + 1)
    assert (again.kind, again.instance, again.written) == (ACCEPT, 2, NOW + WRITE_AGAIN_MS + 1)
    story.decide(again)
    story.apply()
    with story.store.reading() as session:
        assert due_decisions(session, again.written + WRITE_AGAIN_MS) == []
        assert len(session.scalars(select(DecisionRow)).all()) == 1


def test_a_decision_expires_with_the_producers_and_loads_that_it_concerns(story: Story) -> None:
    story.whole()
    story.hello(2)
    story.apply()
    story.accept(instance=2)
    story.decide(decision(ACCEPT, 1, instance=99))
    story.apply()
    long_ago = NOW - 2 * OPTIONS.keep_ms
    with story.store.writing() as session:
        session.execute(update(DecisionRow).values(applied=long_ago))
        expire(session, OPTIONS)
        assert [row.instance for row in session.scalars(select(DecisionRow))] == [2]
