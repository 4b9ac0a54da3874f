"""TranslateOffsets: what one side writes the other reads, and nothing else."""

from __future__ import annotations

import pytest

from millrace.errors import InvalidRequest
from millrace.mirror.offset_search import Outcome, Translated
from millrace.mirror.translate_offsets import (
    MAX_OFFSETS,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

REQUEST = encode_request("PageView", 7, [0, 5, 1 << 60], to_origin=True)
RESULTS = [Translated(Outcome.TRANSLATED, 1 << 60), Translated(Outcome.NOT_RETAINED)]


def test_requests_and_responses_come_back_as_they_were() -> None:
    assert decode_request(REQUEST) == ("PageView", 7, [0, 5, 1 << 60], True)
    assert decode_response(encode_response(RESULTS)) == (0, "", RESULTS)
    assert decode_response(encode_response((), 44, "no mirror")) == (44, "no mirror", [])
    assert decode_response(b"\0\x23") == (35, "", []), "a broker that does not know the API"


@pytest.mark.parametrize("cut", range(len(REQUEST)))
def test_a_request_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRequest):
        decode_request(REQUEST[:cut])


@pytest.mark.parametrize("cut", [n for n in range(len(encode_response(RESULTS))) if n != 2])
def test_a_response_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRequest):
        decode_response(encode_response(RESULTS)[:cut])


def test_a_request_asks_for_a_bounded_amount_of_work() -> None:
    with pytest.raises(InvalidRequest, match="are allowed"):
        decode_request(encode_request("T", 0, [1] * (MAX_OFFSETS + 1), to_origin=False))
