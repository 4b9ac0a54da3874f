from __future__ import annotations

from millrace_audit.reader.turns import Turns
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import Count, Heartbeat, OffsetRange, ReaderPosition


def beat(reader: int, *positions: tuple[int, int], tier: str = "dc1") -> Heartbeat:
    listed = [ReaderPosition("PageView", "ab", partition, offset) for partition, offset in positions]
    return Heartbeat(time=1, cluster="dc1", tier=tier, reader=reader, positions=listed)


def count(reader: int, start: int, end: int, tier: str = "dc1") -> Count:
    source = OffsetRange(reader=reader, cluster="dc1", topic_id="ab", partition=0, start=start, end=end)
    return Count(time=1, tier=tier, topic="PageView", source=source, foreign=0, counts=SequenceCounts())


def followed(*records: Heartbeat | Count | None) -> Turns:
    turns = Turns()
    for record in records:
        turns.apply(record, "dc1")
    return turns


def test_a_successor_goes_on_where_the_last_count_before_its_heartbeat_ends() -> None:
    turns = followed(beat(1), count(1, 0, 50), count(1, 50, 80), beat(2))
    assert (turns.current, turns.covered) == (2, {("ab", 0): 80})


def test_what_a_dead_reader_left_behind_in_the_network_is_not_taken() -> None:
    turns = followed(beat(1), count(1, 0, 50), beat(2), count(1, 50, 80), count(2, 50, 60), beat(1))
    assert (turns.current, turns.covered) == (2, {("ab", 0): 60})


def test_a_range_that_comes_twice_or_out_of_turn_is_not_taken() -> None:
    turns = followed(beat(1), count(1, 0, 50), count(1, 0, 50), count(1, 70, 90))
    assert turns.covered == {("ab", 0): 50}


def test_a_heartbeat_repeats_what_expired_counts_came_to() -> None:
    assert followed(beat(1, (0, 700)), count(1, 700, 900)).covered == {("ab", 0): 900}


def test_other_tiers_and_other_messages_on_the_topic_do_not_matter() -> None:
    turns = followed(beat(1), count(1, 0, 50), beat(9, tier="dc2"), count(9, 50, 70, tier="dc2"), None)
    assert (turns.current, turns.covered) == (1, {("ab", 0): 50})
