"""Algorithm 1: every partition has one reader, shares are even, and all consumers compute the same."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from millrace_consumer.assignment import assign

PARTITIONS = st.sets(st.integers(0, 10_000), max_size=200)
STREAMS = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=40)


@given(PARTITIONS, STREAMS)
def test_every_partition_has_one_reader_and_shares_differ_by_one_at_most(
    partitions: set[int], streams: set[str]
) -> None:
    shares = assign(partitions, streams)
    assert shares.keys() == streams
    assert sorted(number for share in shares.values() for number in share) == sorted(partitions)
    sizes = {len(share) for share in shares.values()}
    assert max(sizes) - min(sizes) <= 1


@given(PARTITIONS, STREAMS, st.randoms())
def test_the_order_in_which_the_registries_are_read_makes_no_difference(
    partitions: set[int], streams: set[str], chance: random.Random
) -> None:
    shuffled, names = list(partitions), list(streams)
    chance.shuffle(shuffled)
    chance.shuffle(names)
    assert assign(shuffled, names) == assign(partitions, streams)


@given(PARTITIONS, STREAMS)
def test_shares_are_ranges_in_order_and_the_first_streams_have_the_larger_ones(
    partitions: set[int], streams: set[str]
) -> None:
    shares = [assign(partitions, streams)[stream] for stream in sorted(streams)]
    assert [number for share in shares for number in share] == sorted(partitions)
    assert [len(share) for share in shares] == sorted((len(share) for share in shares), reverse=True)


def test_the_example_that_the_rule_without_a_rest_would_strand() -> None:
    assert assign(range(5), ["b", "a"]) == {"a": [0, 1, 2], "b": [3, 4]}


def test_nobody_reads_a_topic_without_streams() -> None:
    assert assign(range(5), []) == {}
