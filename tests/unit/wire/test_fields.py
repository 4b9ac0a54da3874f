"""Messages as values: made by the names of their fields, and never changed."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.wire.fields import ApiMessage, array, i16, i32, replace, string


class Part(ApiMessage):
    number: int = i32()


class Whole(ApiMessage):
    error_code: int = i16(default=0)
    name: str | None = string(null_since=2)
    parts: tuple[Part, ...] = array(Part, default=())


ANY: Any = Whole


def test_a_message_is_made_of_its_fields_and_their_defaults() -> None:
    message = Whole(name="x", parts=(Part(number=1),))
    assert (message.error_code, message.name, message.parts[0].number) == (0, "x", 1)
    assert repr(message) == "Whole(error_code=0, name='x', parts=(Part(number=1),))"


def test_a_message_with_a_field_too_few_or_too_many_is_not_made() -> None:
    for values in ({}, {"error_code": 1}, {"name": "x", "other": 1}):
        with pytest.raises(TypeError, match="argument"):
            ANY(**values)


def test_a_message_does_not_change_and_can_be_a_key() -> None:
    message: Any = Whole(name="x")
    with pytest.raises(AttributeError):
        message.name = "y"
    with pytest.raises(AttributeError):
        message.other = 1
    assert {message: 1}[Whole(name="x")] == 1


def test_some_fields_are_replaced() -> None:
    message = Whole(name="x", parts=(Part(number=1),))
    assert replace(message, name=None) == Whole(name=None, parts=(Part(number=1),))
    with pytest.raises(ValueError, match="other"):
        replace(message, other=1)
