"""Counting the items of a request in its bytes."""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from millrace.errors import InvalidRequest
from millrace.wire.codec import MAX_DECODED_ITEMS
from millrace.wire.item_count import item_counter
from tests.attack.requests import body_of, versions

METADATA = load_request_schema(3, 8)


def items(entity: Any) -> int:
    """In all lists of a request."""
    values = [getattr(entity, field.name) for field in dataclasses.fields(entity)]
    lists = [value for value in values if isinstance(value, tuple)]
    messages = [each for many in [*lists, values] for each in many if dataclasses.is_dataclass(each)]
    return sum(len(many) for many in lists) + sum(items(each) for each in messages)


@pytest.mark.parametrize("api_key", sorted({key for key, _ in versions() if 2 <= key <= 47}))
def test_every_item_of_every_list_counts(api_key: int) -> None:
    rng = random.Random(api_key)
    for version in (version for key, version in versions() if key == api_key):
        entity = load_request_schema(api_key, version)
        if any(field.metadata.get("tag") is not None for field in dataclasses.fields(entity)):
            continue  # Fetch v12 and others that no broker of ours is asked
        for length in (0, 3, 300):
            body = body_of(api_key, version, rng, length)
            whole = items(entity_reader(entity)(body, 0)[0])
            item_counter(entity, whole)(body)
            if whole:
                with pytest.raises(InvalidRequest, match=f"more than {whole - 1} items"):
                    item_counter(entity, whole - 1)(body)


def test_many_small_lists_are_too_many_together() -> None:
    list_offsets = load_request_schema(2, 5)
    topic = b"\0\1t" + struct.pack(">i", 2) + bytes(2 * 16)
    head = struct.pack(">ib", -1, 0)
    item_counter(list_offsets, 3_000)(head + struct.pack(">i", 1_000) + topic * 1_000)
    with pytest.raises(InvalidRequest):
        item_counter(list_offsets, 3_000)(head + struct.pack(">i", 1_001) + topic * 1_001)


def test_bytes_that_end_too_early_are_left_to_who_decodes_them() -> None:
    body = body_of(3, 8, random.Random(1), 3)
    for cut in range(len(body)):
        item_counter(METADATA, MAX_DECODED_ITEMS)(body[:cut])
