"""Hours are numbers to compute with and ranges in a record; the complete ones are a run without a gap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace_warehouse.history.hours import hour_of, hours_in, number_of, ranges_of
from millrace_warehouse.history.manifest import HourVerdict
from millrace_warehouse.publish.state import TableState

numbers = st.integers(397700, 397760)


@given(st.sets(numbers))
def test_a_set_of_hours_comes_back_from_its_ranges_which_are_as_few_as_can_be(hours: set[int]) -> None:
    ranges = ranges_of(hours)
    assert hours_in(ranges) == hours
    assert all(number_of(before[1]) + 1 < number_of(after[0]) for before, after in pairwise(ranges))


@given(st.lists(st.tuples(numbers, st.sampled_from(["complete", "incomplete", "unknown"]))))
def test_the_complete_hours_begin_with_the_first_one_and_end_where_one_is_not(
    steps: list[tuple[int, str]],
) -> None:
    state, verdicts = TableState.from_publication(None), dict[int, str]()
    for number, verdict in steps:
        before = state.complete_from
        state.judge(hour_of(number), HourVerdict(verdict=verdict))
        state.settled()
        verdicts[number] = verdict
        complete = {each for each, said in verdicts.items() if said == "complete"}
        start = before if before is not None else min(complete, default=None)
        if start is None:
            assert (state.complete_from, state.complete_until) == (None, None)
            continue
        first = last = start
        while start in complete and first - 1 in complete:
            first -= 1
        while last in complete:
            last += 1
        assert (state.complete_from, state.complete_until) == (first, last)
