# ruff: noqa
"""A hostile engineer's sequences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace_audit.auditor import answers, ledger
from millrace_audit.auditor.ledger import Heard
from millrace_audit.auditor.store import AuditPosition, AuditStore, Row
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    AuditCodec,
    Count,
    ForeignCount,
    Hello,
    LoadCount,
    LoadNumber,
    ReaderPosition,
    Report,
    ReportedWindow,
    Unreadable,
    schema_file,
)
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.seals import seal_of
from tests.unit.audit.story import COUNTED, NOW, OWN, RULES, SAID, STEP, TOPIC, Story, W, found, key_of
from tests.unit.audit.test_messages import Ids

LATER = W + 20 * WINDOW_MS


@pytest.fixture
def quick() -> Iterator[Story]:
    store = AuditStore("sqlite://")
    yield Story(store)
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = AuditStore(url)
    Row.metadata.drop_all(store._engine)
    Row.metadata.create_all(store._engine)
    yield Story(store)
    store.close()


def evil(story, windows, *, time_=W, closed=FOR_EVER, instance=666, cluster="dc1", number=0):  # type: ignore[no-untyped-def]
    if number == 0:
        story.hello(instance, cluster, server="evil", service="evil")
    story.say(
        SAID,
        cluster,
        Report(
            time=time_,
            cluster=cluster,
            server="evil",
            service="evil",
            instance=instance,
            number=number,
            key=key_of(instance, number, cluster),
            seal=seal_of(key_of(instance, number + 1, cluster)),
            closed_through=closed,
            windows=windows,
        ),
    )


def test_18_audit_offline_made_again(quick: Story) -> None:
    quick.whole()
    quick.apply()
    with quick.store.writing() as session:
        place = replace(quick.place((OWN, "offline")), topic_id="another")
        ledger.apply(session, place, quick.partitions[OWN, "offline"], NOW)
