"""Positions in a topic of Apache Kafka: a record is understood whole, or refused in one line."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace.client.kafka_positions import Copy, Recorded, recorded_positions
from millrace.errors import MillraceError
from millrace.records import Cursor
from millrace.records.mirror_position import POSITION_PREFIX, MirrorPosition, Origin

COPY = Copy(UUID(int=7), 3)
POSITION = MirrorPosition(Origin("dc1", "t", UUID(int=5), 2), 0, Cursor(9, 9), 1, 9, 0, numbered=True)
VALUE = POSITION.encode(8)


def test_a_position_is_that_of_the_copy_in_its_key() -> None:
    assert recorded_positions(COPY.key(), VALUE, "positions") == {COPY: Recorded(POSITION, 8)}
    assert recorded_positions(None, VALUE, "positions") == {}
    assert recorded_positions(COPY.key(), None, "positions") == {}


@pytest.mark.parametrize("length", range(len(POSITION_PREFIX), len(VALUE)))
def test_a_value_that_is_cut_behind_its_prefix_is_refused(length: int) -> None:
    with pytest.raises(MillraceError, match="no position"):
        recorded_positions(COPY.key(), VALUE[:length], "positions")


@pytest.mark.parametrize("key", [b"", b"x", b"\xff-1", COPY.key()[:-1], b"7-3"])
def test_a_key_that_names_no_copy_is_refused(key: bytes) -> None:
    with pytest.raises(MillraceError, match="no position"):
        recorded_positions(key, VALUE, "positions")


@pytest.mark.parametrize("value", [b"7", b"{}", b"[]", VALUE[len(POSITION_PREFIX) :].replace(b"0", b"x")])
def test_a_value_of_another_shape_is_refused(value: bytes) -> None:
    with pytest.raises(MillraceError, match="no position"):
        recorded_positions(COPY.key(), POSITION_PREFIX + value, "positions")
