"""Messages that a load rejects, and their clean counterpart: plain messages that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any
from unittest import mock

import fastavro

from millrace_audit.answer import Verdict
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.event import EventSchema, ValueSchema
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE
from millrace_registry.client import SchemaRegistryClient
from tests.support import wait_until
from tests.trials.faultaudit import forging
from tests.trials.faultaudit.batches import BATCH, NEEDED, url
from tests.trials.faultaudit.published import HOUR, mark, publish, publish_proven
from tests.trials.faultaudit.row import HOME, Row
from tests.trials.faultaudit.stage import Says, Stage

PLAIN = {"type": "record", "name": "Plain", "fields": [{"name": "url", "type": "string"}]}
"""A schema without the audit's header."""

_INCOMPLETE = "^no table; incomplete until nothing$"
"""Marks of the hour after it was published as proven, and then by its name."""


def rows() -> Iterator[Row]:
    yield Row(
        name="rejected-with-header",
        what="messages 10 to 19 have a header, and a body that is no Avro",
        plant=_broken_bodies,
        says=Says(
            findings=[("missing", WAREHOUSE, "10-19")],
            reason=r"load \d+ rejected 10 messages",
            sentence=_INCOMPLETE,
        ),
    )
    yield Row(
        name="rejected-without-header",
        what="10 of 40 messages without a header are no Avro",
        plant=_plain_and_text,
        says=Says(beside=Verdict.CARRIED, reason=r"load \d+ rejected 10 messages", sentence=_INCOMPLETE),
        schema=PLAIN,
    )
    yield Row(
        name="plain",
        what="none of 40 messages without a header is rejected",
        plant=_plain,
        says=Says(verdict=Verdict.CARRIED, beside=Verdict.CARRIED),
        schema=PLAIN,
    )


def _broken_bodies(stage: Stage) -> None:
    stage.begin(batches=1)
    with _cut(EventSchema), _cut(ValueSchema):
        stage.go_on(1, 2)
    stage.go_on(2)
    stage.end()
    stage.load()
    stage.await_tier(WAREHOUSE, 50)
    stage.sentence = _marks(stage)


def _cut(schema: type[EventSchema | ValueSchema]) -> AbstractContextManager[Any]:
    """The last bytes of an encoded event are missing."""
    whole: Any = schema.encode
    return mock.patch.object(schema, "encode", lambda *of: whole(*of)[:-8])


def _plain_and_text(stage: Stage) -> None:
    messages = encoded(stage, NEEDED * BATCH)
    _send_plain(stage, [b"text" if BATCH <= number < 2 * BATCH else m for number, m in enumerate(messages)])
    wait_until(f"{stage.topic} is loaded", lambda: WAREHOUSE in stage.ask()[0].foreign)
    stage.sentence = _marks(stage)


def _marks(stage: Stage) -> str:
    before = publish_proven(stage)
    publish(stage, "--hour", HOUR)
    return f"{before}; {mark(stage)}"


def _plain(stage: Stage) -> None:
    _send_plain(stage, encoded(stage, NEEDED * BATCH))


def encoded(stage: Stage, count: int) -> list[bytes]:
    """Return messages without the audit's header."""
    with SchemaRegistryClient(stage.place.registry) as registry:
        schema_id = registry.latest(stage.topic).schema_id
    messages = []
    for number in range(count):
        out = BytesIO()
        fastavro.schemaless_writer(out, PLAIN, {"url": url(number)})
        messages.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    return messages


def write_plain(stage: Stage, messages: Sequence[bytes]) -> None:
    """Send the messages in the stage's window, and a correct message in the next window."""
    (right,) = encoded(stage, 1)
    timed = [forging.message(each, stage.start + number) for number, each in enumerate(messages)]
    beside = forging.message(right, stage.start + WINDOW_MS)
    forging.write(stage.place, HOME, stage.topic, [*timed, beside])


def _send_plain(stage: Stage, messages: Sequence[bytes]) -> None:
    write_plain(stage, messages)
    counted = {HOME: len(messages), OFFLINE: len(messages)}
    wait_until(f"{stage.topic} is counted", lambda: stage.ask()[0].foreign == counted)
    stage.place.load(stage.topic)
