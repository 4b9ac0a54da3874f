"""A member's assignment: written as Kafka's own consumers read it, and read whatever is in it."""

from __future__ import annotations

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.consumer_protocol import decode_assignment, encode_assignment

PLACES = st.sets(st.tuples(st.text(max_size=20), st.integers(0, 2**31 - 1)), max_size=30)


@given(PLACES)
def test_an_assignment_is_read_as_it_was_written(places: set[tuple[str, int]]) -> None:
    assert decode_assignment(encode_assignment(places)) == sorted(places)


def test_another_project_reads_it_as_it_was_meant() -> None:
    read = ConsumerProtocolMemberAssignment.decode(encode_assignment([("b", 7), ("a", 1), ("b", 2)]))
    assert read.assignment == [("a", [1]), ("b", [2, 7])]


@given(st.binary(max_size=60))
def test_bytes_that_mean_something_else_are_no_assignment_and_no_error(data: bytes) -> None:
    assert isinstance(decode_assignment(data), list)
