"""Counts of events whose audit header is a record header: their names are those of the instance's hello."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.ranges import Range
from tests.support import ROUNDS
from tests.unit.audit.story import NOW, Story, W, found
from tests.unit.audit.test_ledger import everything


@pytest.fixture
def quick(stores: Callable[[str], AuditStore]) -> Story:
    return Story(stores("sqlite://"))


def unnamed(*ranges: Range, **other: Any) -> SequenceCounts:
    return found(*ranges, has_names=False, **other)


def both(first: SequenceCounts, second: SequenceCounts) -> SequenceCounts:
    """The counts of a topic whose events have either header."""
    counts = SequenceCounts()
    for some in (first, second):
        for key, tally in some.tallies.items():
            for layer in tally.layers:
                for pair in layer:
                    counts.add(key.server, key.service, key.instance, key.window, *pair, fingerprint=0)
    return counts


def test_events_without_names_are_those_of_the_instance_that_said_hello(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    quick.carry(unnamed((0, 9)))
    quick.beats()
    assert quick.apply().verdict() == "complete"
    assert not quick.rejected_records()


def test_a_hello_may_be_applied_after_the_counts(quick: Story) -> None:
    quick.carry(unnamed((0, 4)))
    quick.beats(NOW - 60_000)
    quick.apply()
    quick.hello()
    quick.report(0, (0, 9))
    quick.carry(unnamed((5, 9)))
    quick.beats()
    assert quick.apply().verdict() == "complete"


def test_a_hello_may_be_applied_after_the_counts_of_aborted_events(quick: Story) -> None:
    quick.count("dc1", unnamed((0, 5)), aborted=unnamed((6, 9)).without_fingerprints())
    quick.count("offline", unnamed((0, 5)))
    quick.load(unnamed((0, 5)))
    quick.beats(NOW - 60_000)
    quick.apply()
    quick.hello()
    quick.report(0, (0, 9), fingerprinted=False)
    quick.beats()
    assert quick.apply().verdict() == "complete"


def test_a_missing_and_an_altered_event_are_named_by_the_hellos_names(quick: Story) -> None:
    quick.hello()
    quick.hello(2)
    quick.report(0, (0, 9))
    quick.report(0, (0, 9), instance=2)
    quick.count("dc1", unnamed((0, 9)))
    quick.count("dc1", unnamed((0, 9), instance=2))
    quick.count("offline", unnamed((0, 6), (8, 9)))
    quick.count("offline", unnamed((0, 9), instance=2, content="other "))
    quick.load(both(unnamed((0, 6), (8, 9)), unnamed((0, 9), instance=2)))
    quick.beats()
    window = quick.apply().window()
    assert window["verdict"] == "incomplete"
    found_there = [
        (f["kind"], f["tier"], f["server"], f["service"], f["sequences"]) for f in window["findings"]
    ]
    assert sorted(found_there) == [
        ("altered", "offline", "web-2", "shop", [[0, 9]]),
        ("missing", "offline", "web-1", "shop", [[7, 7]]),
    ]


def test_a_topic_may_have_events_with_either_header(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    for tier in ("dc1", "offline"):
        quick.count(tier, found((0, 4)))
        quick.count(tier, unnamed((5, 9)))
    quick.load(both(unnamed((5, 9)), found((0, 3))))
    quick.beats()
    assert quick.apply().findings() == [("missing", "warehouse", [[4, 4]])]


def test_an_instance_that_nobody_announced_is_called_that(quick: Story) -> None:
    quick.hello(2)
    quick.report(0, (0, 9), instance=2)
    quick.carry(unnamed((0, 9), instance=2))
    quick.count("dc1", unnamed((0, 9), instance=5))
    quick.count("offline", unnamed((0, 8), instance=5))
    quick.load(unnamed((0, 8), instance=5))
    quick.beats()
    window = quick.apply().window()
    assert window["verdict"] == "incomplete"
    said = " ".join(cause["reason"] for rule in quick.explanation()["rules"] for cause in rule["causes"])
    assert "instance 5 (no hello), sequences 9" in said
    (finding,) = window["findings"]
    assert (finding["instance"], finding["server"], finding["service"]) == (5, "", "")


def test_a_second_hello_with_other_names_is_rejected(quick: Story) -> None:
    quick.hello()
    quick.hello(server="elsewhere")
    quick.report(0, (0, 9))
    quick.carry(unnamed((0, 9)))
    quick.beats()
    assert quick.apply().verdict() == "complete"
    assert quick.rejected_records() == [("Hello", "it contradicts the first hello of its instance")]


def test_events_that_were_copied_from_home_to_home_are_known_by_their_number(quick: Story) -> None:
    quick.hello()
    quick.report(0, (0, 9))
    for cluster in ("dc1", "dc2"):
        quick.count(cluster, unnamed((0, 9)), cluster=cluster)
        quick.count("offline", unnamed((0, 9)), cluster=cluster)
    quick.load(both(unnamed((0, 9)), unnamed((0, 9))))
    quick.beats()
    quick.apply()
    said = " ".join(cause["reason"] for rule in quick.explanation()["rules"] for cause in rule["causes"])
    assert "something copied them from one to the other" in said
    assert "instance 1 (shop on web-1)" in said


def mixed(story: Story, dice: random.Random) -> None:
    """Instances with either header or both, some announced, some events missing or altered."""
    for instance in range(1, 8):
        named, bare = found((0, 4), instance=instance), unnamed((5, 9), instance=instance)
        if instance != 7:
            story.hello(instance)
        if instance < 6:
            story.report(0, (0, 9), instance=instance)
        kind = dice.randrange(4)
        for tier in ("dc1", "offline"):
            story.count(tier, named)
            if kind == 1 and tier == "offline":
                bare = unnamed((5, 8), instance=instance)
            elif kind == 2 and tier == "offline":
                bare = unnamed((5, 9), instance=instance, content="other ")
            elif kind == 3:
                bare = unnamed((4, 9), instance=instance)
            story.count(tier, bare)
        if dice.random() < 0.8:
            story.load(both(named, bare))
        story.beat("dc1", W + instance)
    story.hello(8, "dc2")
    story.report(0, (0, 3), instance=8, cluster="dc2")
    story.carry(unnamed((0, 3), instance=8), "dc2")
    story.count("dc1", unnamed((0, 3), instance=8))
    story.count("offline", unnamed((0, 3), instance=8))
    story.hello(3, server="forged")
    story.beats()
    story.beats(NOW + 6000)


@pytest.mark.parametrize("seed", range(3 * ROUNDS))
def test_any_order_of_records_without_names_gives_one_answer(quick: Story, seed: int) -> None:
    mixed(quick, random.Random(seed))
    expected = everything(quick.apply())
    store = AuditStore("sqlite://")
    again = quick.interleaved(store, random.Random(seed), from_half=seed % 2 == 1)
    assert everything(again) == expected
    store.close()
