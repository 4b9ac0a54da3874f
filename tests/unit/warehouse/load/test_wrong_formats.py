"""Errors and notes of loads that expect another format than the topic's messages have."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.log.formats import MessageFormat, check_is_avro, no_schema
from tests.unit.warehouse.load.test_formats import ORDER, ORDERS, loaded, topic_of
from tests.unit.warehouse.memory_log import SCHEMA_ID, START, MemoryLog

MESSAGES = 120
"""More messages than a load may reject by default."""
OTHER_FRAME = b"\0" + (4711).to_bytes(4, "big")
FRAME = b"\0" + SCHEMA_ID.to_bytes(4, "big")


def avro(number: int) -> bytes:
    value = io.BytesIO()
    fastavro.schemaless_writer(value, ORDER, {"id": number + 64, "customer": "ä", "placedAt": None})
    return value.getvalue()


def protobuf(number: int) -> bytes:
    return b"\x08%c\x12\x02\xc3\xa4" % (number + 1)


VALUES: dict[str, Callable[[int], bytes]] = {
    "objects": lambda number: b'{"id": %d, "customer": null, "placedAt": null}' % number,
    "arrays": lambda number: b'[{"id": %d}]' % number,
    "text": lambda number: f"größe {number}".encode(),
    "framed Avro": lambda number: FRAME + avro(number),
    "unframed Avro": avro,
    "framed objects": lambda number: OTHER_FRAME + VALUES["objects"](number),
    "framed Protobuf": lambda number: OTHER_FRAME + b"\0" + protobuf(number),
    "Protobuf": protobuf,
    "bytes": lambda number: b"\xff\xfe%d" % number,
    "empty": lambda number: b"",
}
TAKES = {
    "objects": ("look like JSON objects", 'format = "json"'),
    "arrays": ("look like JSON arrays", 'format = "text"'),
    "text": ("look like plain text", 'format = "text"'),
    "framed Avro": ("look like Avro in Confluent's wire format", 'format = "avro"'),
    "unframed Avro": ("look like no format that is known here", 'format = "bytes" or "avro-unframed"'),
    "framed objects": ("look like JSON in Confluent's wire format", 'format = "json"'),
    "framed Protobuf": ("look like Protocol Buffers in Confluent's wire format", 'format = "bytes"'),
    "Protobuf": ("look like Protocol Buffers", 'format = "bytes" or "avro-unframed"'),
    "bytes": ("look like no format that is known here", 'format = "bytes" or "avro-unframed"'),
    "empty": ("look like empty values", 'format = "bytes"'),
}


def log_of(values: str, messages: int = MESSAGES) -> MemoryLog:
    log = topic_of()
    log.append(0, [Message(START, b"k", VALUES[values](number)) for number in range(messages)])
    return log


@pytest.mark.parametrize("values", VALUES)
def test_a_first_load_that_is_told_no_format_refuses_what_is_not_avro_and_names_the_format(
    values: str,
) -> None:
    log, (look, setting) = log_of(values), TAKES[values]
    if values == "framed Avro":
        check_is_avro(log, ORDERS, log.schemas.get)
        return
    with pytest.raises(MillraceError) as caught:
        check_is_avro(log, ORDERS, log.schemas.get)
    first = setting.split('"')[1]
    assert str(caught.value) == (
        f"the newest messages of {ORDERS} {look}, and the load expects Avro: write {setting} for the topic"
        f" in the file of topics, or give --format {first}, then load again; --format avro loads them as Avro"
    )


def test_one_message_in_avro_is_enough_for_a_load_that_is_told_no_format() -> None:
    log = log_of("text")
    log.append(0, [Message(START, None, FRAME + avro(1))])
    check_is_avro(log, ORDERS, log.schemas.get)


def test_a_topic_without_a_value_may_be_avro() -> None:
    log = topic_of()
    check_is_avro(log, ORDERS, log.schemas.get)
    log.append(0, [Message(START, b"gone", None)])
    check_is_avro(log, ORDERS, log.schemas.get)


def test_a_body_like_protocol_buffers_behind_a_known_schema_id_is_avro() -> None:
    log = topic_of(FRAME + b"\0\x08\x10")
    check_is_avro(log, ORDERS, log.schemas.get)
    with pytest.raises(MillraceError, match="look like Protocol Buffers in Confluent's wire format"):
        check_is_avro(log, ORDERS, lambda _: None)


class Registry:
    """A registry without any schema."""

    url = "http://registry"

    def find_schema(self, schema_id: int) -> Any | None:
        return None


@pytest.mark.parametrize("expected", ["avro", "json"])
@pytest.mark.parametrize("values", VALUES)
def test_without_a_schema_the_error_names_a_format_that_fits_better(values: str, expected: str) -> None:
    look, setting = TAKES[values]
    registry = cast(SchemaRegistryClient, Registry())
    error = str(no_schema(log_of(values), ORDERS, "subject 'orders'", registry, expected))
    other = (
        f"its newest messages {look}: write {setting} for the topic; or "
        if f'"{expected}"' not in setting
        else ""
    )
    draft = f"draft it with `millrace init schema {ORDERS} --from-topic`, " if expected == "json" else ""
    assert error == (
        f"no schema is registered for subject 'orders' at http://registry: {other}{draft}register it with"
        f" `millrace schemas apply`, or name its subject with --subject {ORDERS}=SUBJECT, then load again"
    )


@pytest.mark.parametrize("told", ["avro", "json"])
@pytest.mark.parametrize("values", VALUES)
def test_a_load_that_is_told_a_wrong_format_fails_with_the_format_that_takes_the_messages(
    tmp_path: Path, values: str, told: str
) -> None:
    look, setting = TAKES[values]
    log = log_of(values)
    if f'"{told}"' in setting:
        assert loaded(log, tmp_path, MessageFormat(told)).rows == MESSAGES
        return
    with pytest.raises(MillraceError) as caught:
        loaded(log, tmp_path, MessageFormat(told))
    assert str(caught.value).endswith(
        f": load them into a new warehouse, with {setting} for the topic, or raise --max-rejected"
    )
    named = "JSON" if values == "objects" else look.removeprefix("look like ")
    singular = {"JSON arrays": "a JSON array", "empty values": "an empty value"}
    assert f"nothing was loaded: the first looks like {singular.get(named, named)}: load" in str(caught.value)


def test_bytes_that_are_no_text_are_to_be_loaded_as_bytes(tmp_path: Path) -> None:
    for values in ("bytes", "unframed Avro"):
        with pytest.raises(MillraceError, match='with format = "bytes"'):
            loaded(log_of(values), tmp_path / values, MessageFormat("text"))
    begins_as_text = topic_of(*[b"a" * 100 + b"\xff"] * MESSAGES)
    with pytest.raises(MillraceError, match=r'looks like plain text: load them .* with format = "bytes" for'):
        loaded(begins_as_text, tmp_path / "begins as text", MessageFormat("text"))


def test_a_few_messages_of_another_format_do_not_make_the_topic_s_format_wrong(tmp_path: Path) -> None:
    log = log_of("framed Avro", 2 * MESSAGES)
    log.append(0, [Message(START, None, b'{"id": 1}')] * MESSAGES)
    with pytest.raises(MillraceError, match="let the producer write Avro with the registry's serializer, or"):
        loaded(log, tmp_path, MessageFormat("avro"))


def test_a_load_of_few_messages_of_another_format_is_made_and_its_note_names_the_format(
    tmp_path: Path,
) -> None:
    result = loaded(log_of("text", 3), tmp_path, MessageFormat("json"))
    assert (result.rows, result.rejected) == (0, 3)
    assert result.notes == [
        f"{ORDERS}: rejected: 3 times 'JSON is malformed: invalid character (byte 0)'; the first looks like"
        ' plain text: load them into a new warehouse, with format = "text" for the topic'
    ]


def test_a_note_on_a_topic_of_the_right_format_names_no_other(tmp_path: Path) -> None:
    log = log_of("objects", 3)
    log.append(0, [Message(START, None, b"a line")] * 3)
    (note,) = loaded(log, tmp_path, MessageFormat("json")).notes
    assert note == f"{ORDERS}: rejected: 3 times 'JSON is malformed: invalid character (byte 0)'"
