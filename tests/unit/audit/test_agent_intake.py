"""Requests that the agent accepts, read strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.errors import MillraceError
from millrace.records.messages import write_varint
from millrace_agent import intake
from millrace_agent.intake import Intake, Refused, Unavailable
from millrace_agent.spool import Form, Spool
from millrace_agent.values import read_values
from millrace_audit.reports.messages import schema_file
from millrace_registry.client import RegisteredVersion
from millrace_registry.subjects import Subjects
from tests.page_view import PAGE_VIEW

START = 1_431_856_800_000
FIELDS = {"clientAddress": "c", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}


class Registry:
    def latest(self, subject: str, **_: Any) -> RegisteredVersion:
        return RegisteredVersion(1, 1, schema_file("PageView"))

    def schema(self, schema_id: int) -> Any:
        return schema_file("PageView")


class Topics:
    def check(self, topic: str) -> None:
        pass


@pytest.fixture
def taking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(intake, "MAX_BATCH", 5)
    spool = Spool(tmp_path, 1 << 30)
    yield Intake(Registry(), Topics(), spool, Subjects.parse(["t=PageView"]))  # type: ignore[arg-type]
    spool.close()


def block(taking: Intake, events: int, *, said: int | None = None, with_size: bool = False) -> bytes:
    """A block of an Avro array, which says that it has so many events."""
    schema = fastavro.parse_schema(taking.batch_schema("t", 1)[1]["items"])
    items, out = BytesIO(), bytearray()
    for _ in range(events):
        fastavro.schemaless_writer(items, schema, {"time": START, "key": None, "event": FIELDS})
    count = events if said is None else said
    write_varint(out, -count if with_size else count)
    if with_size:
        write_varint(out, len(items.getvalue()))
    return bytes(out) + items.getvalue()


def test_an_avro_array_may_come_in_blocks_of_both_kinds(taking: Intake) -> None:
    body = block(taking, 2) + block(taking, 3, with_size=True) + b"\0"
    assert len(taking.from_avro("t", 1, body)) == 5
    with pytest.raises(Refused, match="1 bytes follow"):
        taking.from_avro("t", 1, body + b"\0")
    for cut in range(len(body)):
        with pytest.raises(Refused):
            taking.from_avro("t", 1, body[:cut])


def test_of_more_events_than_a_request_may_have_none_is_read(taking: Intake) -> None:
    for body in (
        block(taking, 0, said=6),
        block(taking, 0, said=1 << 62),
        block(taking, 0, said=6, with_size=True),
        block(taking, 3) + block(taking, 0, said=3),
    ):
        with pytest.raises(Refused, match="in one request: send at most 5"):
            taking.from_avro("t", 1, body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"\ud800": 1},
        {"event": {**FIELDS, "status": "\ud800"}},
        {"event": {**FIELDS, "status": "x" * 1_000_000}},
        {"x" * 1_000_000: 1},
    ],
)
def test_what_is_wrong_with_an_event_is_said_in_a_short_text_that_can_be_written(
    taking: Intake, wrong: dict[str, Any]
) -> None:
    event = {"time": START, "event": FIELDS, **wrong}
    with pytest.raises(Refused) as refused:
        taking.from_json("t", json.dumps([event]).encode())
    assert len(str(refused.value).encode()) < 500


EVERY_TYPE = {
    "type": "record",
    "name": "EveryType",
    "namespace": "millrace.events",
    "fields": [
        {"name": name, "type": kind, "default": default}
        for name, kind, default in (
            ("a", {"type": "array", "items": ["null", "int"]}, []),
            ("b", ["null", "bytes"], None),
            ("d", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 4}], None),
            ("e", {"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
            ("f", "float", 0),
            ("h", ["null", {"type": "fixed", "name": "H", "size": 1}], None),
            ("m", {"type": "map", "values": ["long", "string"]}, {}),
            ("r", ["null", "EveryType"], None),
            ("t", {"type": "long", "logicalType": "timestamp-millis"}, 0),
            ("u", {"type": "string", "logicalType": "uuid"}, "0"),
            ("y", "boolean", False),
            ("z", "null", None),
        )
    ],
}
SCHEMAS: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in Path("schemas").glob("*.avsc")}
SCHEMAS["EveryType"] = EVERY_TYPE
"""The example schemas by name, and one with every kind of type."""


class Examples(Registry):
    def latest(self, subject: str, **_: Any) -> RegisteredVersion:
        return RegisteredVersion(1, 1, SCHEMAS[subject])


NAMES = sorted({field["name"] for schema in SCHEMAS.values() for field in schema["fields"]})
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 70, 10**400, 1e300])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("0A/\0\ud800", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "\ud800"]), inner, max_size=3)
    ),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {"time": st.just(START), "event": st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=12)}
)
PYTHON = re.compile(
    r"<class|Traceback|\bcodec\b|sys\.|\w+(Error|Exception)\b"
    r"|\b(None|NoneType|True|False|str|int|float|bool|dict|list|tuple|bytearray|Decimal)\b"
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Intake]:
    spool = Spool(tmp_path_factory.mktemp("examples"), 1 << 30)
    yield Intake(Examples(), Topics(), spool, Subjects.parse([]))  # type: ignore[arg-type]
    spool.close()


@given(
    st.sampled_from(sorted(SCHEMAS)),
    (EVENTS | ANY_JSON | st.lists(EVENTS, max_size=2)).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=9)
    | st.just(b'{"time": ' + b"1" * 5000 + b"}"),
)
@example("EveryType", json.dumps({"time": START, "event": {"r": {"y": "no"}}}).encode())
@example("EveryType", b'{"time": %d, "event": %s}' % (START, b'{"r":' * 300 + b"{}" + b"}" * 300))
@example("EveryType", b'{"time": %d, "event": %s}' % (START, b'{"r":' * 900 + b"{}" + b"}" * 900))
def test_no_answer_speaks_of_python_whatever_json_comes(examples: Intake, topic: str, body: bytes) -> None:
    for read in (examples.from_json, read_values):
        answer = ""
        try:
            read(topic, body)
        except MillraceError as error:
            answer = str(error)
        assert PYTHON.search(answer) is None


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 400 + ".0"])
def test_a_number_that_would_become_infinite_is_refused_in_an_event_and_kept_in_a_message(
    examples: Intake, number: str
) -> None:
    for name in ("f", "z"):
        body = f'{{"time": {START}, "event": {{"{name}": {number}}}}}'.encode()
        with pytest.raises(Refused, match=f"^{number[:40]} is too large: give a number of at most 1.8e308$"):
            examples.from_json("EveryType", body)
        with pytest.raises(Refused, match="is too large"):
            examples.of_lines("EveryType")(body)
    (message,) = read_values("t", f'{{"time": {START}, "value": {{"f": {number}}}}}'.encode())
    assert message.body == f'{{"f": {number}}}'.encode()


@pytest.mark.parametrize("number", ["1e39", "1" * 40])
def test_a_number_that_a_float_cannot_hold_is_refused_with_its_field(examples: Intake, number: str) -> None:
    body = f'{{"time": {START}, "event": {{"f": {number}}}}}'.encode()
    with pytest.raises(Refused, match=r"f must be a number of at most 3\.4e38, not 1"):
        examples.from_json("EveryType", body)


def test_an_event_that_is_nested_too_deeply_is_refused_at_every_depth(examples: Intake) -> None:
    for depth in range(800, 1_010):
        deep = "[" * depth + "]" * depth
        for event in (f'{{"time": {deep}}}', f'{{"time": {START}, "event": {{"a": {deep}}}}}'):
            with pytest.raises(Refused):
                examples.from_json("EveryType", event.encode())


def test_brokers_that_do_not_answer_are_not_asked_again_by_each_request(tmp_path: Path) -> None:
    clock, asked = [0.0], list[str]()

    class Away:
        def check(self, topic: str) -> None:
            asked.append(topic)
            raise Unavailable("no broker answers")

    spool = Spool(tmp_path, 1 << 30)
    taking = Intake(Registry(), Away(), spool, Subjects.parse([]), clock=lambda: clock[0])  # type: ignore[arg-type]
    for clock[0] in (0.0, 1.0, 9.9, 10.0, 11.0):
        for topic in ("new", "newer"):
            with pytest.raises(Unavailable, match="no broker answers"):
                taking.from_json(topic, b"{}")
    assert asked == ["new", "new"]
    spool.close()


PLAIN = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}


class PlainRegistry(Registry):
    """Has PageView without its header."""

    def latest(self, subject: str, **_: Any) -> RegisteredVersion:
        return RegisteredVersion(7, 1, PLAIN)

    def schema(self, schema_id: int) -> Any:
        return PLAIN


def test_an_event_of_a_schema_without_a_header_is_its_whole_value(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 30)
    taking = Intake(PlainRegistry(), Topics(), spool, Subjects.parse([]))  # type: ignore[arg-type]
    (taken,) = taking.from_json("t", json.dumps({"time": START, "key": "k", "event": FIELDS}).encode())
    assert (taken.topic, taken.time, taken.key, taken.form) == ("t", START, b"k", Form.VALUE)
    assert taken.body[:5] == b"\0\0\0\0\7"
    schema: Any = fastavro.parse_schema(dict(PLAIN))
    read: Any = fastavro.schemaless_reader(BytesIO(taken.body[5:]), schema, None)
    assert {name: read[name] for name in FIELDS} == FIELDS
    assert taking.of_lines("t")(json.dumps({"time": START, "key": "k", "event": FIELDS}).encode()) == [taken]
    in_avro = taking.from_avro("t", 7, block(taking, 1) + b"\0")
    assert in_avro == [taken._replace(key=None)]
    with pytest.raises(Refused, match=r"^the event does not fit schema PageView: .*header"):
        taking.from_json("t", json.dumps({"time": START, "event": {**FIELDS, "header": {}}}).encode())
    spool.close()


@pytest.mark.parametrize("topic", ["audit", "audit-counts", "audit-offline"])
def test_a_topic_of_the_audit_takes_nothing_from_a_client(taking: Intake, topic: str) -> None:
    with pytest.raises(Refused, match=f"^topic {topic} belongs to the audit"):
        taking.check_topic(topic)
    with pytest.raises(Refused, match="belongs to the audit"):
        taking.from_json(topic, b"{}")
