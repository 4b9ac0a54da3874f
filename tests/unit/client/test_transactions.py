"""Batches of an answer that a reader of committed records takes."""

from __future__ import annotations

import pytest

from millrace.client.transactions import batches_from
from millrace.errors import ErrorCode, MillraceError
from millrace.records import CONTROL_BIT, TRANSACTIONAL_BIT, Message, build_batch, control_batch
from millrace.wire.fetch import FetchedPartition


def answer(*batches: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> FetchedPartition:
    return FetchedPartition(0, 100, 100, 0, memoryview(b"".join(batches)), aborted)


def test_a_fetch_inside_a_batch_begins_with_the_whole_batch() -> None:
    batches = [build_batch([Message(1, None, b"x")] * 2, base_offset=base) for base in (0, 2, 4)]
    taken = [(header.base_offset, bytes(batch)) for header, batch, _ in batches_from(answer(*batches), 3)]
    assert taken == [(2, batches[1]), (4, batches[2])]


def test_control_batches_and_those_of_aborted_transactions_hold_no_records() -> None:
    one = [Message(1, None, b"x")]
    written = [
        build_batch(one, base_offset=base, producer_id=7, producer_epoch=0, attributes=attributes)
        for base, attributes in (
            (0, TRANSACTIONAL_BIT),
            (1, TRANSACTIONAL_BIT | CONTROL_BIT),  # the marker that aborts it
            (2, TRANSACTIONAL_BIT),
        )
    ]
    written.append(control_batch(3, b"", timestamp=1))
    readable = [readable for _, _, readable in batches_from(answer(*written, aborted=((7, 0),)), 0)]
    assert readable == [False, False, True, False]
    behind = [readable for _, _, readable in batches_from(answer(*written, aborted=((7, 0),)), 1)]
    assert behind == [False, True, False], "the transaction of a batch before the offset counts, too"


def test_the_error_of_an_answer_names_the_partition_and_the_offset() -> None:
    refused = FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE, 100, 100, 0, memoryview(b""), ())
    with pytest.raises(MillraceError, match=r"^orders-0 cannot be read at 3: OFFSET_OUT_OF_RANGE$"):
        list(batches_from(refused, 3, "orders-0"))
    assert list(batches_from(refused, 3)) == [], "a reader that names no partition looks at the error itself"
