"""One partition of a reader, given fetch answers: what it counts, loses, refuses and says of its origin."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from uuid import UUID

import pytest

from millrace.client.runs import OffsetRules
from millrace.errors import ErrorCode
from millrace.records import BatchHeader, Cursor, Message, build_batch, control_batch
from millrace.records.header import CONTROL_BIT, TRANSACTIONAL_BIT
from millrace.records.mirror_position import MirrorPosition
from millrace.records.mirror_position import Origin as MirrorOrigin
from millrace.wire.fetch import FetchedPartition
from millrace_audit.reader import counting
from millrace_audit.reader.counting import BatchCounter, Tally
from millrace_audit.reader.partition import TRUNCATED_S, CannotRead, Partition, PartitionKey
from millrace_audit.reports.messages import Origin

TOPIC_ID = UUID(int=7)
ORIGIN = MirrorOrigin("dc1", "t", TOPIC_ID, 3)


def answer(*batches: bytes, error: int = 0, log_start: int = 0) -> FetchedPartition:
    return FetchedPartition(error, -1, -1, log_start, memoryview(b"".join(batches)))


HEADER = bytes.fromhex("000000012cb082ac95ac530a7765622d310873686f7082")
"""Schema id, time, names and the first byte of an instance's number: 65 and further numbers follow."""


def transaction(base: int, producer: int, *sequences: int) -> bytes:
    """A batch of a transaction: an instance's events with those numbers."""
    values = [Message(0, None, HEADER + b"\1" + bytes((2 * number,))) for number in sequences]
    attributes = TRANSACTIONAL_BIT
    return build_batch(values, base_offset=base, producer_id=producer, attributes=attributes)


def end_of(producer: int, base: int, *, commit: bool) -> bytes:
    """The marker that ends a transaction."""
    marker = struct.pack(">hh", 0, commit)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    message = Message(0, marker, b"\0" * 6)
    return build_batch([message], base_offset=base, producer_id=producer, attributes=attributes)


def sequences(tally: Tally) -> list[list[int]]:
    return [pair for counted in tally.counts.tallies.values() for pair in counted.pairs()]


def data(base: int, records: int = 1) -> bytes:
    return build_batch([Message(0, None, b"plain") for _ in range(records)], base_offset=base)


def position(base: int, next_offset: int, batches: int) -> bytes:
    at = MirrorPosition(ORIGIN, 0, Cursor(next_offset), batches, batches, 0)
    return control_batch(base, at.encode(0), timestamp=0)


def partition(published_end: int | None = 0, *, byte_positions: bool = True) -> Partition:
    published = None if published_end is None else Cursor(published_end)
    return Partition("t", PartitionKey("a" * 32, 0), OffsetRules(byte_positions=byte_positions), published)


def take(state: Partition, fetched: FetchedPartition) -> None:
    for _ in state.take(fetched, BatchCounter(lambda _: False)):
        pass


def messages(state: Partition) -> int:
    return sum(count for count, _ in state.tally.foreign.values())


def test_what_was_read_is_told_once() -> None:
    state = partition()
    take(state, answer(data(0, 3)))
    assert (state.has_news, state.end, messages(state)) == (True, 3, 3)
    state.published()
    assert (state.has_news, state.published_end, messages(state)) == (False, 3, 0)
    take(state, answer(data(0, 3)))  # a fetch inside a batch gives the whole batch
    assert (state.has_news, messages(state)) == (False, 0)


def test_what_is_missing_between_two_batches_is_lost() -> None:
    state, first = partition(), data(0)
    take(state, answer(first))
    take(state, answer(data(len(first))))
    assert not state.lost, "the jump to the next byte position is none"
    take(state, answer(data(5 * len(first))))
    assert state.lost.pairs() == [[len(first) + 1, 5 * len(first) - 1]]
    assert messages(state) == 3


def test_offsets_of_apache_kafka_may_have_holes() -> None:
    state = partition(byte_positions=False)
    take(state, answer(data(0), data(50)))
    assert (state.lost.pairs(), messages(state)) == ([], 2)


def test_what_holds_no_messages_for_consumers_is_behind_a_reader_like_any_message() -> None:
    state = partition(byte_positions=False)
    state.noted(4)
    take(state, answer(data(0, 3), control_batch(3, b"a transaction's mark", timestamp=0)))
    assert (state.end, messages(state), state.behind) == (4, 3, False)
    state.published()
    take(state, answer(control_batch(4, b"another", timestamp=0)))
    assert (state.end, state.has_news, state.lost.pairs()) == (5, True, [])


@pytest.mark.parametrize("limit", [None, *range(1, 12)])
def test_events_of_aborted_transactions_are_counted_apart(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "ROWS", 2)
    log = [
        transaction(0, 7, 0, 1, 2),
        transaction(3, 8, 3, 4),
        transaction(5, 7, 5, 6),
        end_of(7, 7, commit=False),
        end_of(8, 8, commit=True),
        transaction(9, 7, 7, 8),
        end_of(7, 11, commit=True),
    ]
    fetched = replace(answer(*log), aborted_transactions=((7, 0),))
    state, counter = partition(byte_positions=False), BatchCounter(lambda _: True)
    visible, aborted, seen = [], [], 0
    for state.limit in (limit, None):
        for part in state.take(fetched, counter):
            seen += part.messages
            visible += sequences(state.tally)
            aborted += sequences(state.aborted)
            state.published()
    visible += sequences(state.tally)
    assert sorted(n for first, last in visible for n in range(first, last + 1)) == [3, 4, 7, 8]
    assert sorted(n for first, last in aborted for n in range(first, last + 1)) == [0, 1, 2, 5, 6]
    assert (state.end, seen) == (12, 4)


def test_a_count_that_is_published_in_the_middle_of_an_answer_loses_nothing_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "ROWS", 10)
    state, counted = partition(byte_positions=False), 0
    for _ in state.take(answer(data(0, 35)), BatchCounter(lambda _: False)):
        counted += messages(state)
        state.published()
    assert counted + messages(state) == 35


def test_what_expired_is_lost_and_counting_goes_on_behind_it() -> None:
    state = partition(10)
    take(state, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=400))
    assert (state.lost.pairs(), state.end, state.has_news) == ([[10, 399]], 400, True)
    take(state, answer(data(400)))
    assert messages(state) == 1


def test_an_offset_behind_the_end_is_no_expiry() -> None:
    state = partition(10)
    with pytest.raises(CannotRead, match="OFFSET_OUT_OF_RANGE"):
        take(state, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=0))
    with pytest.raises(CannotRead, match="ends at 5 and was counted up to 10"):
        state.noted(5)


def test_a_log_that_stays_shorter_than_it_was_counted_is_counted_on_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = partition(byte_positions=False)
    state.noted(3)
    take(state, answer(data(0, 3)))
    state.published()
    for end, later in ((1, 0), (2, TRUNCATED_S - 1)):
        now[0] = 100 + later
        with pytest.raises(CannotRead, match="after a minute, counting continues at the log's end"):
            state.noted(end)
    now[0] = 100 + TRUNCATED_S
    state.noted(2)
    assert (state.truncated, state.published_end, state.end, state.behind) == (3, 2, 2, False)
    state.noted(4)
    take(state, answer(data(2, 2)))
    assert (messages(state), state.end, state.lost.pairs()) == (2, 4, [])


def test_what_was_read_and_not_told_yet_of_a_log_that_is_truncated_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace_audit.reader.partition.TRUNCATED_S", 0)
    state = partition(byte_positions=False)
    take(state, answer(data(0, 3)))
    state.noted(2)
    assert (state.truncated, state.published_end, messages(state), state.behind) == (None, 0, 0, True)
    take(state, answer(data(0, 2)))
    assert (messages(state), state.end) == (2, 2)


def test_a_log_that_was_short_and_is_long_again_may_hold_something_else() -> None:
    state = partition(10, byte_positions=False)
    for end in (6, 4, 5):
        with pytest.raises(CannotRead):
            state.noted(end)
    state.noted(10)
    assert (state.lost.pairs(), state.truncated) == ([[4, 9]], None)
    state.noted(11)
    assert state.lost.pairs() == [[4, 9]]


@pytest.mark.parametrize("byte_positions", [True, False])
def test_what_lies_before_a_damaged_batch_is_counted_and_nothing_of_it(byte_positions: bool) -> None:
    state, first = partition(byte_positions=byte_positions), data(0, 2)
    bad = bytearray(data(len(first)))
    bad[-3] ^= 1
    hint = "millrace log repair" if byte_positions else "see its broker's log"
    for _ in range(2):  # and once more is no more
        with pytest.raises(CannotRead, match=f"fails its CRC.*{hint}"):
            take(state, answer(first, bytes(bad), data(2 * len(first))))
        assert (messages(state), state.end) == (2, 2)


def test_a_pause_doubles_up_to_a_minute_and_only_a_new_cause_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = partition()
    assert state.is_due()
    assert state.stick("broken")
    pauses = []
    for _ in range(9):
        assert state.stuck is not None
        assert not state.is_due()
        pauses.append(state.stuck.retry_at - now[0])
        now[0] = state.stuck.retry_at
        assert state.is_due()
        assert not state.stick("broken")
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert state.stick("broken in another way")


def test_a_damage_that_its_broker_finds_as_well_is_said_once() -> None:
    state = partition()
    bad = bytearray(data(0))
    bad[-3] ^= 1
    causes = []
    for found in (answer(bytes(bad)), answer(error=ErrorCode.CORRUPT_MESSAGE)):
        with pytest.raises(CannotRead) as cannot:
            take(state, found)
        causes.append(str(cannot.value))
    assert causes[0] != causes[1]
    assert [state.stick(cause) for cause in causes] == [True, False]
    assert state.stuck is not None
    assert state.stuck.cause == causes[0]


def test_the_newest_position_counts_when_all_was_read_that_it_accounts_for() -> None:
    state, mark = partition(), position(0, 100, 1)
    first = data(len(mark))
    take(state, answer(mark, first))
    assert state.origin == Origin("dc1", TOPIC_ID.hex, 3, 100), "as far as it could be read"
    assert state.copied_through == BatchHeader.of(mark).next_offset < state.end
    newest = MirrorPosition(ORIGIN, 0, Cursor(250), 2, 2, 0)
    state.copied(ORIGIN, newest, state.end + 1)  # something is on its way to the disk
    assert state.origin == Origin("dc1", TOPIC_ID.hex, 3, 100)
    state.copied(ORIGIN, newest, state.end)
    assert state.origin == Origin("dc1", TOPIC_ID.hex, 3, 250)
    assert state.copied_through == state.end
    assert BatchHeader.of(first).next_offset == state.end


def test_what_a_mirror_has_left_out_of_its_newest_append_is_known_to_be_all_there_is() -> None:
    state = partition()
    take(state, answer(data(0)))
    state.copied(ORIGIN, MirrorPosition(ORIGIN, 0, Cursor(250), 4, 4, 0), state.end)
    assert state.origin == Origin("dc1", TOPIC_ID.hex, 3, 250)


def test_of_a_mirror_that_has_no_position_yet_is_said_what_it_is_a_mirror_of() -> None:
    state = partition()
    state.copied(ORIGIN, None, 0)
    assert state.origin == Origin("dc1", TOPIC_ID.hex, 3, None)


def test_a_copy_is_counted_no_further_than_it_is_known_what_it_copies_also_inside_a_batch() -> None:
    state = partition(byte_positions=False)
    state.limit = 4
    take(state, answer(data(0, 3), data(3, 5), data(8, 2)))
    assert (state.end, messages(state)) == (4, 4)
    state.published()
    state.limit = 9
    take(state, answer(data(3, 5), data(8, 2)))
    assert (state.end, messages(state), state.lost.pairs()) == (9, 5, [])
