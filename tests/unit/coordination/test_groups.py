"""Names and values of the nodes that hold consumer groups."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.coordination.groups import (
    CommittedOffset,
    current_offsets,
    decode_offset,
    encode_offset,
    name_of,
    node_name,
    partition_of,
)

ID, OTHER = UUID(int=1), UUID(int=2)


@given(st.text(min_size=1))
def test_any_name_makes_one_step_of_a_path_and_is_found_again(name: str) -> None:
    node = node_name(name)
    assert "/" not in node
    assert node not in (".", "..")
    assert node.isascii()
    assert node.isprintable()
    assert name_of(f"/dc1/consumers/{node}") == name


def test_a_partition_is_read_from_its_node() -> None:
    assert partition_of("/dc1/consumers/g/offsets/PageView/12") == ("PageView", 12)


@given(
    st.builds(
        CommittedOffset,
        offset=st.integers(0, 2**63 - 1),
        metadata=st.text(),
        time_ms=st.integers(0, 2**50),
        topic_id=st.none() | st.uuids(),
        leader_epoch=st.integers(-1, 2**31 - 1),
    )
)
def test_an_offset_is_read_as_it_was_written(committed: CommittedOffset) -> None:
    assert decode_offset(encode_offset(committed)) == committed


def test_offsets_of_a_topic_that_was_created_anew_or_is_gone_do_not_count() -> None:
    found = {
        (topic, 0): CommittedOffset(offset=7, time_ms=1, topic_id=topic_id)
        for topic, topic_id in {"same": ID, "anew": ID, "gone": ID, "unbound": None}.items()
    }
    ids = {"same": ID, "anew": OTHER, "unbound": OTHER}
    assert current_offsets(found, ids) == {("same", 0): found["same", 0]}
