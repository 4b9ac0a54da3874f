"""TranslateOffsets: what one side writes the other reads, and nothing else."""

from __future__ import annotations

import struct

import pytest

from millrace.errors import InvalidRequest
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey
from millrace_mirror.offset_search import Outcome, Translated
from millrace_mirror.translation import (
    TranslateOffsetsRequest,
    TranslateOffsetsResponse,
    TranslateOffsetsResult,
)

FAR = 1 << 60
RESULTS = [Translated(Outcome.TRANSLATED, FAR), Translated(Outcome.NOT_RETAINED)]


def request(*offsets: int) -> bytes:
    asked = TranslateOffsetsRequest(to_origin=True, topic="PageView", partition=7, offsets=offsets)
    return encode(asked, ApiKey.TRANSLATE_OFFSETS, 0)


def read_request(body: bytes) -> TranslateOffsetsRequest:
    return decode(TranslateOffsetsRequest, ApiKey.TRANSLATE_OFFSETS, 0, body)


def encode_response(results: list[Translated], error: int = 0, message: str = "") -> bytes:
    translated = tuple(TranslateOffsetsResult(outcome=o, offset=offset) for o, offset in results)
    answer = TranslateOffsetsResponse(error_code=error, message=message, results=translated)
    return encode(answer, ApiKey.TRANSLATE_OFFSETS, 0)


def response(body: bytes) -> TranslateOffsetsResponse:
    return decode(TranslateOffsetsResponse, ApiKey.TRANSLATE_OFFSETS, 0, body)


def test_requests_and_responses_stand_in_their_bytes_as_they_always_did() -> None:
    assert request(0, FAR) == struct.pack(">bh8siiqq", 1, 8, b"PageView", 7, 2, 0, FAR)
    assert encode_response(RESULTS) == struct.pack(">hhibqbq", 0, 0, 2, 0, FAR, 2, -1)
    assert encode_response([], 44, "no mirror") == struct.pack(">hh9si", 44, 9, b"no mirror", 0)


def test_what_one_side_writes_the_other_reads() -> None:
    read = read_request(request(0, 5, FAR))
    assert (read.to_origin, read.topic, read.partition, read.offsets) == (True, "PageView", 7, (0, 5, FAR))
    results = response(encode_response(RESULTS)).results
    assert [Translated(Outcome(each.outcome), each.offset) for each in results] == RESULTS


@pytest.mark.parametrize("cut", range(len(request(0, 5))))
def test_a_request_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRequest):
        read_request(request(0, 5)[:cut])


@pytest.mark.parametrize("cut", range(len(encode_response(RESULTS))))
def test_a_response_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRequest):
        response(encode_response(RESULTS)[:cut])
