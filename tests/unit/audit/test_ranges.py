from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_audit.reports.ranges import (
    SequenceRanges,
    from_deltas,
    in_words,
    layered,
    merged,
    size,
    to_deltas,
)

pairs = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))
lists = st.lists(pairs, max_size=12)


def numbers(ranges: object) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}  # type: ignore[attr-defined]


def is_normal(ranges: SequenceRanges) -> bool:
    listed = list(ranges)
    return all(a[1] + 1 < b[0] for a, b in pairwise(listed))


@given(lists)
def test_adding_ranges_is_adding_to_a_set_and_names_what_was_there(added: list[tuple[int, int]]) -> None:
    ranges, model = SequenceRanges(), set[int]()
    for first, last in added:
        new = set(range(first, last + 1))
        assert numbers(ranges.add(first, last)) == model & new
        model |= new
        assert numbers(ranges) == model
        assert len(ranges) == len(model)
        assert is_normal(ranges)


@given(lists, lists)
def test_set_operations_agree_with_python_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = SequenceRanges(a), SequenceRanges(b)
    for result, model in (
        (left | right, numbers(a) | numbers(b)),
        (left & right, numbers(a) & numbers(b)),
        (left - right, numbers(a) - numbers(b)),
    ):
        assert numbers(result) == model
        assert len(result) == len(model)
    assert is_normal(left | right)
    assert (left - right) == merged(left - right)
    assert numbers(left) == numbers(a), "an operation does not change its operands"


@given(lists)
def test_layers_hold_each_number_as_often_as_it_is_there(ranges: list[tuple[int, int]]) -> None:
    layers = layered(ranges)
    for n in range(80):
        depth = sum(first <= n <= last for first, last in ranges)
        assert [n in layer for layer in layers] == [level < depth for level in range(len(layers))]
    assert all(layers)
    assert all(map(is_normal, layers))


def test_no_ranges_take_more_than_a_sweep_to_layer() -> None:
    nested = [(n, 200_000 - n) for n in range(50_000)]
    assert sum(layer.range_count for layer in layered(nested)) == len(nested)


@given(st.lists(pairs.map(list), max_size=20))
def test_the_wire_form_keeps_every_range_in_its_order(ranges: list[list[int]]) -> None:
    assert [list(r) for r in from_deltas(to_deltas(ranges))] == ranges


def test_a_million_events_in_order_are_one_range() -> None:
    ranges = SequenceRanges()
    for first in range(0, 1_000_000, 1000):
        ranges.add(first, first + 999)
    assert (ranges.range_count, len(ranges)) == (1, 1_000_000)


def test_all_numbers_of_63_bits_are_no_more_than_python_can_count() -> None:
    assert len(SequenceRanges([(0, (1 << 63) - 1)])) == sys.maxsize


def test_ranges_that_touch_or_overlap_are_joined() -> None:
    joined = merged([(5, 9), (0, 2), (3, 4), (8, 12), (20, 20)])
    assert joined.pairs() == [[0, 12], [20, 20]]
    assert size(joined) == len(joined) == 14


@pytest.mark.parametrize("flat", [[1], [5, -1], [0, 3, 1], [0, 1 << 63], [1 << 62, 1 << 62]])
def test_a_broken_wire_form_is_refused(flat: list[int]) -> None:
    with pytest.raises(ValueError, match="range"):
        from_deltas(flat)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        SequenceRanges().add(3, 2)


def test_ranges_read_as_a_sentence() -> None:
    assert in_words([(1, 1), (4, 6)]) == "1, 4-6"
    assert in_words([(n, n) for n in range(0, 14, 2)]) == "0, 2, 4, 6, 8 and 2 more ranges"
