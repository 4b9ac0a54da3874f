"""The private API's messages: what goes in comes out, and no cut or garbage passes."""

from dataclasses import replace
from uuid import UUID

import pytest

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records import Cursor, Message, build_batch
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.mirror_append import (
    MirrorAppend,
    MirrorAppended,
    MirrorMode,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

ORIGIN = Origin("dc1", "PageView", UUID(int=7), 3)
BATCH = build_batch([Message(1, None, b"value")], base_offset=900)
REQUESTS = [
    MirrorAppend(mode=MirrorMode.DESCRIBE, origin=ORIGIN),
    MirrorAppend(
        mode=MirrorMode.APPEND,
        origin=ORIGIN,
        expected=900,
        start=5,
        cursor=Cursor(901, 980, 6),
        dropped=2,
        records=BATCH,
    ),
    MirrorAppend(mode=MirrorMode.RESET, origin=ORIGIN, expected=0, cursor=Cursor(1 << 40)),
]
RESPONSES = [
    MirrorAppended(),
    MirrorAppended(error=6, message="broker 2 leads it", partition=4, leader=2),
    MirrorAppended(
        partition=4,
        leader=2,
        state="running",
        high_watermark=77,
        position=MirrorPosition(ORIGIN, 5, Cursor(901, 980, 6), 10, 200, 3),
    ),
    MirrorAppended(position=MirrorPosition(ORIGIN, 5, Cursor(901), 10, 200, 3)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: r.mode.name)
def test_a_request_reads_back_as_it_was_written(request_: MirrorAppend) -> None:
    topic, found = decode_request(1, b"".join(encode_request("PageView", request_)))
    assert (topic, found) == ("PageView", request_)


@pytest.mark.parametrize("response", RESPONSES)
def test_a_response_reads_back_as_it_was_written(response: MirrorAppended) -> None:
    assert decode_response(encode_response(1, response)) == response


def test_version_0_has_no_epochs() -> None:
    head, records = encode_request("PageView", REQUESTS[1])
    assert bytes(head[-8:-4]) == b"\0\0\0\6"
    asked = decode_request(0, b"".join([head[:-8], head[-4:], records]))[1]
    assert asked == replace(REQUESTS[1], cursor=Cursor(901, 980))
    assert encode_response(0, RESPONSES[2]) == encode_response(1, RESPONSES[2]).replace(b"\0\0\0\6", b"")


def test_no_cut_request_or_response_is_taken_for_a_whole_one() -> None:
    body = b"".join(encode_request("PageView", REQUESTS[1]))
    for cut in range(len(body)):
        with pytest.raises(InvalidRequest):
            decode_request(1, body[:cut])
    answer = encode_response(1, RESPONSES[2])
    for cut in range(len(answer)):
        with pytest.raises(InvalidRequest):
            decode_response(answer[:cut])


@pytest.mark.parametrize(
    "garbage", [b"", b"\x09" + bytes(60), b"\x00\x7f\xff", b"\x01\x00\x01\xff" + bytes(50)]
)
def test_garbage_is_an_invalid_request(garbage: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_request(1, garbage)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_request(1, b"".join(encode_request("t", REQUESTS[0])) + b"\0")
    with pytest.raises(InvalidRequest):
        decode_response(encode_response(1, RESPONSES[0]) + b"\0")


def test_an_error_says_its_code_and_its_message() -> None:
    found = decode_response(
        encode_response(1, MirrorAppended(error=ErrorCode.POLICY_VIOLATION, message="not mirrored: ü" * 10))
    )
    assert found.error == ErrorCode.POLICY_VIOLATION
    assert found.message.startswith("not mirrored: ü")
