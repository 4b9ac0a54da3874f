"""Strict reading of requests with messages: their values are sent as they are, and need no schema.

A message is `{"time": ms, "key": text or null, "value": JSON object or null}`, or has `value_base64` instead
of `value`; a request has one or a list of them. A JSON object is sent as its text in the request, byte for
byte: written again from the parsed object, its numbers could change.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from millrace_agent.intake import Refused, check_size, listed, parse_json, read_each, time_and_key
from millrace_agent.spool import Event

_FIELDS = ("time", "key", "value", "value_base64")
_JSON = json.JSONDecoder()
_BETWEEN = re.compile(r"[ \t\n\r,:]*")
"""All that is between two tokens of valid JSON."""


def read_values(topic: str, body: bytes) -> list[Event]:
    """Return the events of a request with messages.

    Raise Refused, with the first wrong message, when any message is wrong: then no message is accepted.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"it is no JSON: byte {error.start} is no UTF-8") from None
    given, texts = listed(parse_json(text)), _value_texts(text)
    return read_each(given, lambda one, latest_ms: _message(topic, one, texts, latest_ms), "message")


def _message(topic: str, given: Any, texts: Iterator[str], latest_ms: int) -> Event:
    """Return the event of the next message; `texts` are the texts of the values from that message on."""
    time_ms, key = time_and_key(given, _FIELDS, latest_ms)
    value = _value(given, next(texts))
    if value is None and key is None:
        raise Refused("key: a message whose value is null is a tombstone, which needs a key")
    check_size("value", value or b"", key)
    return Event.of_value(topic, time_ms, key, value)


def _value(given: dict[str, Any], text: str) -> bytes | None:
    if ("value" in given) == ("value_base64" in given):
        raise Refused("value: give either value or value_base64")
    if "value_base64" in given:
        return _from_base64(given["value_base64"])
    if given["value"] is None:
        return None
    if not isinstance(given["value"], dict):
        raise Refused("value: give a JSON object or null, and all other values in value_base64")
    return text.encode()


def _from_base64(given: Any) -> bytes:
    if isinstance(given, str):
        try:
            return b64decode(given, validate=True)
        except ValueError:
            pass
    raise Refused("value_base64: give the value's bytes in base64, without line breaks")


def _value_texts(text: str) -> Iterator[str]:
    """Yield the text of the field `value` in each message of a request, which is valid JSON."""
    at = _after_gap(text, 0)
    if text[at] == "[":
        at = _after_gap(text, at + 1)
    while True:
        value, at = _value_text(text, at)
        yield value
        at = _after_gap(text, at)


def _value_text(text: str, at: int) -> tuple[str, int]:
    """Return the text of the field `value` in the message that begins at a brace, and the message's end.

    The text is empty when there is no such field. Raise Refused when a field is there twice.
    """
    texts: dict[str, str] = {}
    at = _after_gap(text, at + 1)
    while text[at] != "}":
        name, at = _JSON.raw_decode(text, at)
        if name in texts:
            raise Refused(f"{name}: the field is there twice")
        start = _after_gap(text, at)
        at = _JSON.raw_decode(text, start)[1]
        texts[name] = text[start:at]
        at = _after_gap(text, at)
    return texts.get("value", ""), at + 1


def _after_gap(text: str, at: int) -> int:
    gap = _BETWEEN.match(text, at)
    assert gap is not None
    return gap.end()
