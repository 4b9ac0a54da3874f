"""Every error code in an answer is one exception with one text, whatever else is imported."""

from __future__ import annotations

import pytest

import millrace.handlers.produce
import millrace.records.mirror_position  # noqa: F401  # both define errors of their own
from millrace.client.errors import TryAgain, raise_error
from millrace.errors import ERRORS, BrokerError, ErrorCode, OutOfOrderSequence


@pytest.mark.parametrize("code", [code for code in range(-1, 130) if code != 0])
def test_every_code_is_a_broker_error_or_another_attempt(code: int) -> None:
    with pytest.raises((BrokerError, TryAgain), match="topic 't'"):
        raise_error(code, "topic 't'", "because")


def test_a_code_raises_its_own_class() -> None:
    with pytest.raises(OutOfOrderSequence, match="x: because"):
        raise_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", "because")
    with pytest.raises(BrokerError) as raised:
        raise_error(ErrorCode.UNKNOWN_SERVER_ERROR, "x")
    assert type(raised.value) is BrokerError


def test_the_classes_carry_their_codes() -> None:
    assert {code: cls.code for code, cls in ERRORS.items()} == {code: code for code in ERRORS}
