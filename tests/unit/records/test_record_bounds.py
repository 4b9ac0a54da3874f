"""The guess of where records lie: what the walk finds, or nothing."""

from __future__ import annotations

import random
import struct

import numpy as np

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, Message, build_batch
from millrace.records.record_bounds import guessed_bounds, walked_bounds
from millrace.records.row_cursor import PADDING, PaddedBuffer

TAG = b"\0\0\0\0\1"


def records(messages: list[Message]) -> bytes:
    return build_batch(messages)[HEADER_BYTES:]


def usual(dice: random.Random, count: int, most: int = 400, header: int | None = None) -> list[Message]:
    """Messages of one schema; `header` is the number of bytes of each message's record header."""
    return [
        Message(
            dice.randrange(1 << 20),
            None,
            TAG + dice.randbytes(dice.randrange(most)),
            [] if header is None else [("audit", dice.randbytes(header))],
        )
        for _ in range(count)
    ]


def both(parts: list[bytes], counts: list[int]) -> tuple[object, object]:
    """(guess, walk), each as lists of begins and ends; None where there is none."""
    buffer = PaddedBuffer.of(parts)
    edges = PADDING + np.cumsum([0, *map(len, parts)])
    guess = guessed_bounds(buffer, edges, np.array(counts))
    walked: list[np.ndarray] = []
    try:
        for index, count in enumerate(counts):
            walked.append(walked_bounds(buffer.data, int(edges[index]), int(edges[index + 1]), count))
    except CorruptMessage:
        return guess and [each.tolist() for each in guess], None
    bounds = [np.concatenate([each[:-1] for each in walked]), np.concatenate([each[1:] for each in walked])]
    return guess and [each.tolist() for each in guess], [each.tolist() for each in bounds]


def test_usual_batches_are_guessed() -> None:
    dice = random.Random(1)
    for _ in range(30):
        counts = [dice.randrange(1, 60) for _ in range(dice.randrange(1, 6))]
        header = dice.choice((None, 0, 29, 200))
        guess, walk = both([records(usual(dice, count, header=header)) for count in counts], counts)
        assert guess is not None
        assert guess == walk


def test_what_is_not_usual_is_left_to_the_walk() -> None:
    dice = random.Random(2)
    some = usual(dice, 20)
    unusual = [
        [*some, Message(0, None, TAG + b"x" * 9000)],
        [*some, Message(0, None, b"\0\0\0\0\2xx")],
        [*some, Message(0, None, None)],
        [*some, Message(0, None, TAG, [("a header", b"x")])],
        [*usual(dice, 20, header=29), *some],
        [*some, Message(0, None, TAG + b"..." + TAG)],
        [Message(0, None, b"\0\1\0\0\1"), *some],
        [Message(0, None, bytes(4000))] * 20,
    ]
    for messages in unusual:
        guess, walk = both([records(messages)], [len(messages)])
        assert guess is None
        assert walk is not None


def test_a_guess_is_never_anything_but_the_walk() -> None:
    dice = random.Random(3)
    guessed = refused = 0
    for _ in range(3000):
        counts = [dice.randrange(1, 6) for _ in range(dice.randrange(1, 4))]
        parts, header = [], dice.choice((None, None, 3))
        for count in counts:
            part = bytearray(records(usual(dice, count, 12, header)))
            for _ in range(dice.choice((0, 0, 1, 3))):
                at = dice.randrange(len(part))
                kind = dice.randrange(4)
                if kind == 0:
                    part[at] = dice.choice((0, 1, 2, 0x80, 0xFF, dice.randrange(256)))
                elif kind == 1:
                    del part[at : at + dice.randint(1, 3)]
                elif kind == 2:
                    part[at:at] = dice.choice((TAG, b"\0", bytes(9), dice.randbytes(2)))
                else:
                    part[at:at] = struct.pack("B", dice.randrange(64) * 2) + b"\0\0\0\1" + TAG
            parts.append(bytes(part) or b"\0")
        stated = [count + dice.choice((0, 0, 0, 1, -1, 5)) for count in counts]
        guess, walk = both(parts, stated)
        guessed += guess is not None
        refused += walk is None
        assert guess in (None, walk), (parts, stated)
    assert guessed > 200
    assert refused > 200


def test_records_full_of_zeros_do_not_make_the_guess_expensive() -> None:
    zeros = records([Message(0, None, TAG + bytes(1000))] * 50)
    assert both([zeros], [50])[0] is None
