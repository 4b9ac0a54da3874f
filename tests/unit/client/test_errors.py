"""Every error code in an answer is one exception with one text, whatever else is imported."""

from __future__ import annotations

import pytest

import millrace.records.mirror_position  # noqa: F401  # both define errors of their own
from millrace.client.errors import TryAgain, in_words, raise_error
from millrace.errors import ERRORS, BrokerError, ErrorCode, MillraceError, OutOfOrderSequence


@pytest.mark.parametrize("code", [code for code in range(-1, 130) if code != 0])
def test_every_code_is_a_broker_error_or_another_attempt(code: int) -> None:
    with pytest.raises((BrokerError, TryAgain), match="topic 't'"):
        raise_error(code, "topic 't'", "because")


@pytest.mark.parametrize("code", [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_where_nobody_asks_again_a_change_of_the_leader_is_one_sentence_and_no_traceback(
    code: ErrorCode,
) -> None:
    with pytest.raises(MillraceError, match=r"^t-0: no broker leads it at the moment$"):
        raise_error(code, "t-0")
    with pytest.raises(MillraceError, match=r"^t-0: start broker 2$"):
        raise_error(code, "t-0", "start broker 2")


def test_only_what_is_no_change_of_the_leader_sends_people_to_the_broker_s_log() -> None:
    assert in_words(ErrorCode.STORAGE_ERROR) == "its broker answers STORAGE_ERROR: see the broker's log"
    assert in_words(ErrorCode.OFFSET_NOT_AVAILABLE) == "no broker leads it at the moment"


def test_a_code_raises_its_own_class() -> None:
    with pytest.raises(OutOfOrderSequence, match="x: because"):
        raise_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", "because")
    with pytest.raises(BrokerError) as raised:
        raise_error(ErrorCode.UNKNOWN_SERVER_ERROR, "x")
    assert type(raised.value) is BrokerError


def test_the_classes_carry_their_codes() -> None:
    assert {code: cls.code for code, cls in ERRORS.items()} == {code: code for code in ERRORS}
