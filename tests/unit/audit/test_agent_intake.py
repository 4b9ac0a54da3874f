"""Requests that the agent accepts, read strictly."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from millrace.records.messages import write_varint
from millrace_agent import intake
from millrace_agent.intake import Intake, Refused, Unavailable
from millrace_agent.spool import Form, Spool
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
