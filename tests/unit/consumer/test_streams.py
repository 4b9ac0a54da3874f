"""Streams: what is handed out, what counts as consumed, and what happens when partitions come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import pytest

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, build_batch, control_batch, iter_records
from millrace.records import Message as Record
from millrace_consumer import streams
from millrace_consumer.streams import Batch, Jump, MessageStream, OwnedPartition
from tests.support import WAIT_S, wait_until

ME = threading.get_ident


def batch(base: int, count: int, size: int = 1) -> Batch:
    data = build_batch([Record(5, b"k", b"x" * size, [("h", b"v")])] * count, base_offset=base)
    header = BatchHeader.parse(data)
    assert header is not None
    return Batch(header, data)


class Fed:
    """A stream and its partitions, fed by hand."""

    def __init__(self, partitions: int = 1, queued_bytes: int = 10_000) -> None:
        self.room, self.proved = 0, True
        self.stream = MessageStream("clicks 0", queued_bytes, self._count_room)
        self.parts = [
            OwnedPartition(("clicks", number), UUID(int=1), self.stream, 0, lambda: self.proved)
            for number in range(partitions)
        ]
        self.first = self.parts[0]

    def _count_room(self) -> None:
        self.room += 1

    def put(self, *pulled: Batch | Jump | CorruptMessage, part: int = 0) -> None:
        for each in pulled:
            self.stream.put(self.parts[part], self.parts[part].life, each)

    def offsets(self, count: int) -> list[int]:
        return [next(self.stream).offset for _ in range(count)]


@pytest.fixture
def later() -> Callable[[MessageStream], Future[int]]:
    """The offset of a stream's next message, asked for in another thread."""
    pool = ThreadPoolExecutor()
    return lambda stream: pool.submit(lambda: next(stream).offset)


def test_messages_come_in_order_with_all_they_carry() -> None:
    fed = Fed()
    fed.put(batch(0, 2), batch(100, 2))
    message = next(fed.stream)
    assert (message.topic, message.partition, message.offset, message.timestamp) == ("clicks", 0, 0, 5)
    assert (message.key, message.value, message.headers) == (b"k", b"x", (("h", b"v"),))
    assert fed.offsets(3) == [1, 100, 101]


def test_a_message_is_done_when_the_next_is_asked_for_and_not_before() -> None:
    fed = Fed()
    fed.put(batch(0, 3))
    assert fed.offsets(1) == [0]
    assert fed.first.done == 0
    assert fed.offsets(1) == [1]
    assert fed.first.done == 1
    fed.stream.put_down(ME() + 1)
    assert fed.first.done == 1, "another thread's commit does not count what this one works on"
    fed.stream.put_down(ME())
    assert fed.first.done == 2
    fed.offsets(1)
    fed.stream.put_down(ME(), done=False)
    fed.stream.put_down(ME())
    assert fed.first.done == 2, "what was given up stays undone"


def test_what_two_pullers_bring_is_handed_out_once() -> None:
    fed = Fed()
    fed.put(batch(0, 2), batch(0, 2), batch(100, 1))
    assert fed.offsets(3) == [0, 1, 100]


def test_a_fetch_inside_a_batch_hands_out_what_was_asked_for() -> None:
    fed = Fed()
    fed.stream.seek(fed.first, 102)
    fed.put(batch(100, 4))
    assert fed.offsets(2) == [102, 103]


def test_a_stream_blocks_until_there_is_something_and_ends_when_closed(
    later: Callable[[MessageStream], Future[int]],
) -> None:
    fed = Fed()
    waiting = later(fed.stream)
    assert not waiting.done()
    fed.put(batch(7, 1))
    assert waiting.result(WAIT_S) == 7
    waiting = later(fed.stream)
    fed.stream.close()
    assert isinstance(waiting.exception(5), StopIteration | RuntimeError)
    assert list(fed.stream) == []


def test_pulling_stops_at_the_limit_and_goes_on_when_there_is_room() -> None:
    fed = Fed(queued_bytes=1000)
    life = fed.first.life
    assert fed.stream.next_pull(fed.first) == (life, 0)
    fed.put(batch(0, 1, size=600))
    assert fed.stream.next_pull(fed.first) == (life, 1)
    fed.put(batch(700, 1, size=600))
    assert fed.stream.next_pull(fed.first) is None
    before = fed.room
    assert fed.offsets(1) == [0]
    assert fed.room == before + 1
    assert fed.stream.next_pull(fed.first) == (life, 701)


def test_without_proof_of_ownership_nothing_is_handed_out_until_it_comes(
    later: Callable[[MessageStream], Future[int]],
) -> None:
    fed = Fed()
    fed.put(batch(0, 2))
    assert fed.offsets(1) == [0]
    fed.proved = False
    waiting = later(fed.stream)
    wait_until("the message before is done", lambda: fed.first.done == 1)
    assert not waiting.done()
    fed.proved = True
    assert waiting.result(WAIT_S) == 1


def test_a_seek_drops_what_was_pulled_and_what_is_on_its_way() -> None:
    fed = Fed()
    before = fed.first.life
    fed.put(batch(0, 3), batch(100, 3))
    assert fed.offsets(2) == [0, 1]
    fed.stream.seek(fed.first, 50)
    fed.stream.put(fed.first, before, batch(200, 3))
    assert fed.stream.next_pull(fed.first) == (fed.first.life, 50)
    fed.put(batch(60, 1))
    assert fed.offsets(1) == [60]
    assert fed.first.done == 50, "the message in hand at the seek does not count"


def test_a_stopped_partition_hands_out_nothing_but_what_is_in_hand_still_counts() -> None:
    fed = Fed(partitions=2)
    fed.put(batch(0, 3))
    fed.put(batch(40, 2), part=1)
    assert fed.offsets(1) == [0]
    fed.stream.stop([fed.first])
    assert fed.stream.next_pull(fed.first) is None
    assert not fed.stream.wait_for_hands([fed.first], 0.01)
    assert fed.offsets(1) == [40], "the other partition goes on"
    assert fed.stream.wait_for_hands([fed.first], 0)
    assert fed.first.done == 1
    fed.stream.end([fed.first])
    fed.put(batch(3, 1))
    assert fed.offsets(1) == [41]


def test_what_is_in_hand_of_a_partition_that_ended_does_not_count() -> None:
    fed = Fed()
    fed.put(batch(0, 3))
    fed.offsets(1)
    fed.stream.end([fed.first])
    fed.stream.put_down(ME())
    assert fed.first.done == 0
    assert fed.stream.wait_for_hands([fed.first], 0)


def test_a_jump_takes_effect_behind_what_was_pulled_before_it() -> None:
    fed = Fed()
    fed.put(batch(500, 1), Jump(501, 90), batch(100, 1))
    assert fed.first.pull_offset == 101
    fed.put(Jump(501, 90))  # of a puller that asked in the same moment
    assert fed.first.pull_offset == 101
    assert fed.offsets(1) == [500]
    assert fed.offsets(1) == [100], "though it is before what was taken last"
    fed.put(Jump(101, 300))
    fed.stream.close()
    assert list(fed.stream) == []


def test_where_reading_begins_counts_as_done_before_the_application_has_asked_for_anything() -> None:
    fed = Fed()
    new = OwnedPartition(("clicks", 1), UUID(int=1), fed.stream, None, lambda: True)
    fed.put(batch(0, 2))
    for pulled in (Jump(None, 90), batch(90, 1)):
        fed.stream.put(new, new.life, pulled)
    fed.stream.stop([new])
    fed.stream.end([new])
    assert new.done == 90, "whoever takes over reads what came since"


def test_control_batches_are_passed_over() -> None:
    fed = Fed()
    marker = control_batch(0, b"position", timestamp=5)
    header = BatchHeader.parse(marker)
    assert header is not None
    fed.put(Batch(header, marker), batch(80, 1))
    assert fed.offsets(1) == [80]


def test_a_batch_for_which_memory_was_wanting_is_pulled_again_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(header: BatchHeader, data: bytes) -> Iterator[object]:
        yield next(iter_records(header, data))
        raise MemoryError

    fed = Fed()
    fed.put(batch(0, 3), batch(100, 1))
    with monkeypatch.context() as scarce:
        scarce.setattr(streams, "iter_records", fails)
        assert fed.offsets(1) == [0]
        with pytest.raises(MemoryError):
            next(fed.stream)
    assert (fed.first.done, fed.first.pull_offset) == (1, 1)
    fed.put(batch(0, 3), batch(100, 1))
    assert fed.offsets(3) == [1, 2, 100]


@pytest.mark.parametrize("decoded", [True, False])
def test_damage_is_told_in_its_turn_and_stops_its_partition_only(decoded: bool) -> None:
    fed = Fed(partitions=2)
    fed.put(batch(0, 1))
    bad = batch(100, 1)
    # Either the CRC was wrong when it was pulled, or it was right and the records are nonsense.
    cut = Batch(bad.header, bad.data[:-2])
    fed.put(cut if decoded else CorruptMessage("clicks-0 is damaged at offset 100"))
    fed.put(batch(40, 1), part=1)
    assert fed.offsets(1) == [0]
    with pytest.raises(CorruptMessage, match="clicks-0 is damaged at offset"):
        next(fed.stream)
    assert fed.first.done == 1
    assert fed.stream.next_pull(fed.first) is None
    assert fed.offsets(1) == [40]
    fed.stream.seek(fed.first, 200)
    assert fed.stream.next_pull(fed.first) == (fed.first.life, 200)
    fed.put(batch(200, 1))
    assert fed.offsets(1) == [200]
