"""The items of a request are counted before they are made."""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any

import pytest
from kio.serial import entity_reader

from millrace.errors import InvalidRequest
from millrace.wire.codec import MAX_ITEM_BYTES, decode, decode_request
from millrace.wire.fields import request_of
from millrace.wire.group_messages import JoinGroupRequest, ListGroupsRequest
from millrace.wire.messages import ApiKey, ListOffsetsRequest, MetadataRequest, MetadataResponse
from millrace.wire.primitives import MIN_ITEM_LIMIT, REFUSED_ITEMS, RequestTooLarge, TooManyItems
from tests.trials.attack.requests import body_of
from tests.unit.wire.test_messages import CASES, Case

REQUESTS = [case for case in CASES if case.api_key in request_of(case.cls)]


def items(entity: Any) -> int:
    """In all lists of a request."""
    values = [getattr(entity, field.name) for field in dataclasses.fields(entity)]
    lists = [value for value in values if isinstance(value, tuple)]
    messages = [each for many in [*lists, values] for each in many if dataclasses.is_dataclass(each)]
    return sum(len(many) for many in lists) + sum(items(each) for each in messages)


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: f"{case.cls.__name__}-v{case.version}")
def test_every_item_of_every_list_counts(case: Case) -> None:
    rng = random.Random(case.api_key)
    for length in (0, 3, 300):
        body = body_of(case.api_key, case.version, rng, length)
        whole = items(entity_reader(case.entity)(body, 0)[0])
        asked = decode_request(case.cls, case.api_key, case.version, body, whole or 1)
        if whole > 1:
            with pytest.raises(TooManyItems, match=f"{whole} items .*; {whole - 1} are allowed") as raised:
                decode_request(case.cls, case.api_key, case.version, body, whole - 1)
            assert raised.value.request == asked


def test_many_small_lists_are_too_many_together() -> None:
    topic = b"\0\1t" + struct.pack(">i", 2) + bytes(2 * 16)
    head = struct.pack(">ib", -1, 0)

    def decoded(topics: int) -> None:
        decode_request(ListOffsetsRequest, 2, 5, head + struct.pack(">i", topics) + topic * topics)

    allowed, read = MIN_ITEM_LIMIT // 3, (MIN_ITEM_LIMIT + REFUSED_ITEMS) // 3
    decoded(allowed)
    for topics in (allowed + 1, read):
        with pytest.raises(TooManyItems):
            decoded(topics)
    with pytest.raises(RequestTooLarge):
        decoded(read + 1)


@pytest.mark.parametrize("items", [MIN_ITEM_LIMIT + REFUSED_ITEMS + 1, 100_000, (1 << 31) - 1])
def test_a_length_alone_makes_no_items(items: int) -> None:
    body = struct.pack(">i", items) + bytes(1_000_000)
    with pytest.raises(RequestTooLarge, match="too many items in the lists"):
        decode_request(MetadataRequest, ApiKey.METADATA, 4, body)
    head = b"\0\1g" + struct.pack(">ii", 1, 1) + b"\0\0\xff\xff\0\0"
    with pytest.raises(RequestTooLarge):
        decode_request(JoinGroupRequest, ApiKey.JOIN_GROUP, 5, head + struct.pack(">i", items) + bytes(1000))


def test_a_response_cannot_state_more_items_than_it_has_bytes() -> None:
    body = struct.pack(">ii", 0, (1 << 31) - 1) + bytes(1000)
    with pytest.raises(InvalidRequest, match="2147483647 items are stated, 1000 bytes are left"):
        decode(MetadataResponse, ApiKey.METADATA, 8, body)


def test_a_request_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(RequestTooLarge, match=r"a request of \d+ bytes; 51200 are allowed"):
        decode_request(MetadataRequest, ApiKey.METADATA, 4, memoryview(bytes(10 * MAX_ITEM_BYTES + 1)), 10)


def test_tagged_fields_are_skipped_and_count_as_items() -> None:
    tagged = b"\5\2ab"
    body = b"\1" + bytes([MIN_ITEM_LIMIT & 0x7F | 0x80, MIN_ITEM_LIMIT >> 7])
    assert decode_request(ListGroupsRequest, ApiKey.LIST_GROUPS, 4, body + tagged * MIN_ITEM_LIMIT)
    body = b"\1" + bytes([(MIN_ITEM_LIMIT + 1) & 0x7F | 0x80, MIN_ITEM_LIMIT >> 7])
    with pytest.raises(TooManyItems):
        decode_request(ListGroupsRequest, ApiKey.LIST_GROUPS, 4, body + tagged * (MIN_ITEM_LIMIT + 1))


def test_a_number_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidRequest, match="a number of more than 35 bits"):
        decode(ListGroupsRequest, ApiKey.LIST_GROUPS, 4, b"\xff" * 1_000_000)
