"""Requests with messages that the agent accepts: values are sent byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace_agent.intake import MAX_EVENT_BYTES, TOO_DEEP, Refused
from millrace_agent.spool import Event, Form
from millrace_agent.values import read_values

START = 1_431_856_800_000


def values_of(body: str | bytes) -> list[bytes]:
    events = read_values("t", body.encode() if isinstance(body, str) else body)
    assert {(one.topic, one.time, one.form) for one in events} == {("t", START, Form.VALUE)}
    return [one.body for one in events]


@pytest.mark.parametrize(
    "value",
    [
        "{}",
        '{"total": 1.10, "large": 12345678901234567890.123, "far": 1e400}',
        '{ "a" : [ 1 , {"b":"} ] , \\" "} ],\n\t"a": null}',
        '{"ä": "ö \\u00e4 \\ud83d\\ude00 \\ud800", "": ""}',
    ],
)
def test_a_json_object_is_sent_byte_for_byte_wherever_it_is_in_the_request(value: str) -> None:
    time = f'"time": {START}'
    alone = f'{{"value":{value},{time}}}'
    for body in (
        alone,
        f'\r\n {{ {time} , "key" : "[{{,:" , "value"\t:\n{value} }} ',
        f'{{"\\u0076alue": {value}, {time}, "key": null}}',
        f"[{alone}]",
    ):
        assert values_of(body) == [value.encode()], body
    assert values_of(f'[ {alone} ,\n{{{time}, "value_base64": "AAE="}},{alone}]') == [
        value.encode(),
        b"\0\1",
        value.encode(),
    ]


def test_a_null_value_is_a_tombstone_and_an_empty_one_is_none() -> None:
    body = [
        {"time": START, "key": "k", "value": None},
        {"time": START, "key": "k", "value_base64": ""},
        {"time": START, "value_base64": ""},
    ]
    assert read_values("t", json.dumps(body).encode()) == [
        Event.of_value("t", START, b"k", None),
        Event.of_value("t", START, b"k", b""),
        Event.of_value("t", START, None, b""),
    ]


GOOD: dict[str, Any] = {"time": START, "value": {"order": 1}}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (7, "it is no object {time, key, value, value_base64}"),
        ({**GOOD, "event": {}}, "event: no such field, the fields are time, key, value, value_base64"),
        ({"value": {}}, "time: null is no time in ms since the epoch between 2000-01-01"),
        ({**GOOD, "time": 1 << 62}, "time: 4611686018427387904 is no time"),
        ({**GOOD, "key": 5}, "key: give a text or null"),
        ({**GOOD, "key": "\ud800"}, "key: it has half of a surrogate pair"),
        ({"time": START}, "value: give either value or value_base64"),
        ({**GOOD, "value_base64": ""}, "value: give either value or value_base64"),
        (
            {"time": START, "value": '{"order": 1}'},
            "value: give a JSON object or null, and all other values in",
        ),
        ({"time": START, "value": [1]}, "value: give a JSON object or null"),
        (
            {"time": START, "value": None},
            "key: a message whose value is null is a tombstone, which needs a key",
        ),
        ({"time": START, "value_base64": "AA"}, "value_base64: give the value's bytes in base64"),
        (
            {"time": START, "value_base64": "AA\nA="},
            "value_base64: give the value's bytes in base64, without line breaks",
        ),
        ({"time": START, "value_base64": "ä"}, "value_base64: give the value's bytes in base64"),
        ({"time": START, "value_base64": {}}, "value_base64: give the value's bytes in base64"),
        (
            {"time": START, "key": "k", "value": {"": "x" * MAX_EVENT_BYTES}},
            "value: 1000008 bytes with a key of 1",
        ),
    ],
)
def test_a_wrong_message_is_refused_with_its_number_field_and_reason(wrong: Any, said: str) -> None:
    with pytest.raises(Refused) as alone:
        read_values("t", json.dumps(wrong).encode())
    assert str(alone.value).startswith(said)
    with pytest.raises(Refused) as third:
        read_values("t", json.dumps([GOOD, GOOD, wrong, GOOD, 7]).encode())
    assert str(third.value).startswith(f"message 2: {said}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "it is no JSON"),
        (b"{", "it is no JSON"),
        (b"\xff", "it is no JSON: byte 0 is no UTF-8"),
        ("{}".encode("utf-16"), "it is no JSON: byte 0 is no UTF-8"),
        (b'{"value": {"x": NaN}}', "NaN is no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "a request without messages: send at least one"),
        (b"[%s]" % b",".join([b"{}"] * 10_001), "10001 messages in one request: send at most 10000"),
        (b'{"time": %d, "value": {}, "key": "k", "value": {}}' % START, "value: the field is there twice"),
        (b'{"order": 1}\n{"order": 2}', "it is no JSON: Extra data"),
    ],
)
def test_a_body_that_is_no_list_of_messages_is_refused_in_one_sentence(body: bytes, said: str) -> None:
    with pytest.raises(Refused) as refused:
        read_values("t", body)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_value_that_is_nested_too_deeply_is_refused_at_every_depth() -> None:
    refused = []
    for depth in range(800, 1_010):
        body = f'{{"time": {START}, "value": {{"a": {"[" * depth}{"]" * depth}}}}}'.encode()
        try:
            read_values("orders", body)
        except Refused as error:
            refused.append(str(error))
    assert 0 < len(refused) < 210
    assert set(refused) == {TOO_DEEP}
