"""The set of hours behaves as a set, whatever is added and taken away; its ranges are as few as can be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace_warehouse.history.entries import hour_of_partition, partition_of
from millrace_warehouse.publish.state import Hours, following

hours = st.integers(397700, 397760).map(hour_of_partition)


def of(names: set[str]) -> Hours:
    made = Hours()
    for name in sorted(names, key=lambda name: hash(name)):
        made.add(name)
    return made


@given(st.lists(st.tuples(st.booleans(), hours)))
def test_a_set_of_hours_is_a_set(steps: list[tuple[bool, str]]) -> None:
    expected, made = set[str](), Hours()
    for adds, hour in steps:
        expected.add(hour) if adds else expected.discard(hour)
        made.add(hour) if adds else made.discard(hour)
        assert (hour in made) is adds
    assert list(made) == sorted(expected)
    assert made.last == max(expected, default=None)
    assert made.newest(5) == sorted(expected, reverse=True)[:5]
    ranges = made.ranges()
    assert list(Hours(ranges)) == sorted(expected)
    assert all(following(before[1]) < after[0] for before, after in pairwise(ranges))


@given(st.sets(hours), st.sets(hours), hours)
def test_a_run_of_hours_ends_where_an_hour_is_missing_or_excluded(
    there: set[str], without: set[str], hour: str
) -> None:
    left = there - without
    run = of(there).run_around(hour, of(without & there))
    if hour not in left:
        assert run is None
        return
    assert run is not None
    number = partition_of(hour)
    assert number is not None
    first = last = number
    while hour_of_partition(first - 1) in left:
        first -= 1
    while hour_of_partition(last + 1) in left:
        last += 1
    assert run == (hour_of_partition(first), hour_of_partition(last))


@given(st.sets(hours), st.sets(hours))
def test_the_first_hour_outside_is_the_smallest_that_is_left(there: set[str], without: set[str]) -> None:
    assert of(there).first_outside(of(without & there)) == min(there - without, default=None)
