from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_audit.reports import counts as counts_module
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts, SequenceTally, window_start
from millrace_audit.reports.ranges import Range, SequenceRanges, layered

rows = st.lists(
    st.tuples(st.sampled_from([3, 7, 2**62]), st.integers(0, 4 * WINDOW_MS), st.integers(0, 25)), max_size=60
)
PRODUCERS = {3: ("web-1", "shop"), 7: ("web-2", "shop"), 2**62: ("web-2", "search")}


def multiset(counts: SequenceCounts) -> Counter[tuple[int, int, int]]:
    found: Counter[tuple[int, int, int]] = Counter()
    for key, tally in counts.tallies.items():
        assert (key.server, key.service) == PRODUCERS[key.instance]
        for first, last in tally.ranges():
            found.update((key.instance, key.window, n) for n in range(first, last + 1))
    return found


def one_by_one(events: list[tuple[int, int, int]]) -> SequenceCounts:
    counts = SequenceCounts()
    for instance, time, sequence in events:
        counts.add(*PRODUCERS[instance], instance, window_start(time), sequence)
    return counts


@given(rows)
def test_every_message_is_counted_as_often_as_it_is_there(events: list[tuple[int, int, int]]) -> None:
    counts = one_by_one(events)
    assert multiset(counts) == Counter((i, window_start(t), s) for i, t, s in events)
    assert counts.total == len(events)


@given(rows, rows)
def test_merged_counts_are_the_counts_of_both(
    a: list[tuple[int, int, int]], b: list[tuple[int, int, int]]
) -> None:
    counts = one_by_one(a)
    counts.merge(one_by_one(b))
    assert counts == one_by_one(a + b)


@given(rows)
def test_both_written_forms_rebuild_the_counts_repeats_included(events: list[tuple[int, int, int]]) -> None:
    counts = one_by_one(events)
    assert SequenceCounts.from_json(json.loads(json.dumps(counts.to_json()))) == counts
    assert SequenceCounts.from_avro(counts.to_avro()) == counts


def test_a_number_that_comes_again_and_again_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise whoever sends one number 50,000 times would keep a reader busy for an hour."""
    tally, sweeps = SequenceTally(), list[int]()

    def sweep(ranges: Iterable[Range]) -> list[SequenceRanges]:
        sweeps.append(1)
        return layered(ranges)

    monkeypatch.setattr(counts_module, "layered", sweep)
    for _ in range(1000):
        tally.add(7, 8)
    assert (tally.total, len(tally.layers), sweeps) == (2000, 1000, [1])


def test_a_number_seen_three_times_is_present_once_and_repeated() -> None:
    tally = SequenceTally([(0, 9), (4, 5), (5, 5)])
    assert tally.total == 13
    assert tally.present.pairs() == [[0, 9]]
    assert tally.repeated.pairs() == [[4, 5]]


@pytest.mark.parametrize(
    ("time", "start"), [(0, 0), (WINDOW_MS - 1, 0), (WINDOW_MS, WINDOW_MS), (-1, -WINDOW_MS)]
)
def test_windows_are_aligned_to_the_epoch_and_half_open(time: int, start: int) -> None:
    assert window_start(time) == start


def test_the_json_names_each_producer_and_window_by_itself() -> None:
    counts = SequenceCounts()
    counts.add("web-2", "shop", 7, 0, 0)
    counts.add("web-2", "shop", 7, WINDOW_MS, 1)
    assert json.loads(json.dumps(counts.to_json())) == [
        {
            "server": "web-2",
            "service": "shop",
            "instance": 7,
            "window": 0,
            "ranges": [[0, 0]],
            "duplicates": [],
        },
        {
            "server": "web-2",
            "service": "shop",
            "instance": 7,
            "window": WINDOW_MS,
            "ranges": [[1, 1]],
            "duplicates": [],
        },
    ]


few = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)))


@given(few, few)
def test_what_one_count_has_without_another_is_a_difference_of_multisets(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    def counted(ranges: list[tuple[int, int]]) -> tuple[SequenceCounts, Counter[int]]:
        counts, numbers = SequenceCounts(), Counter[int]()
        for first, more in ranges:
            counts.add("web1", "web", 1, 0, first, first + more)
            numbers.update(range(first, first + more + 1))
        return counts, numbers

    (a, x), (b, y) = counted(mine), counted(theirs)
    rest = a.without(b)
    numbers = Counter(
        n for tally in rest.tallies.values() for f, last in tally.ranges() for n in range(f, last + 1)
    )
    assert numbers == x - y
    rest.merge(counted([(n, 0) for n in (x & y).elements()])[0])
    assert rest == a
