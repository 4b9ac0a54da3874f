"""Facts about a topic that names alone show."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_warehouse.commands import load_context
from millrace_warehouse.history.layout import (
    Topic,
    attempted,
    ledger_path,
    read_load,
    rows_folder,
    unpublished_since,
)
from millrace_warehouse.load.attempt import new_attempt
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import START, TOPIC, filled_log, load_run
from tests.unit.warehouse.publish.publishing import publish_in


def test_the_name_of_an_attempt_says_which_edition_it_was_to_become() -> None:
    for load, edition in ((1, 1), (7, 2), (12_345, 10_000)):
        name = rows_folder(TOPIC, load, new_attempt(edition)).rpartition("/")[2]
        assert attempted(name) == (load, edition)
    assert attempted("0000000001") is None
    assert attempted("compacted") is None


def test_a_ledger_entry_has_the_name_of_what_it_records() -> None:
    assert ledger_path("t/loads/0000000001.json") == "t/ledger/loads/0000000001.json"


def test_a_load_says_since_when_nothing_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, topic = filled_log(), Topic(open_storage(str(tmp_path)), TOPIC)
    assert unpublished_since(topic) is None
    first = load_topic(load_run(log, tmp_path), TOPIC)
    assert load_context.unpublished_notes(topic, first) == [], "it may be published in an hour"
    monkeypatch.setattr(load_context, "UNPUBLISHED_AFTER", -load_context.UNPUBLISHED_AFTER)
    (note,) = load_context.unpublished_notes(topic, first)
    assert note.startswith(f"{TOPIC}: no load since 20")
    with connect(topic.storage) as catalog:
        publish_in(topic.storage, catalog, "2015-05-17T10")
    assert load_context.unpublished_notes(topic, first) == []
    log.append_events(0, [START])
    second = load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    monkeypatch.setattr(load_context, "now", lambda: "2015-05-17T10:00:00.000Z")
    assert len(load_context.unpublished_notes(topic, second)) == 1
    monkeypatch.setattr(load_context, "now", lambda: read_load(topic, 1).created)
    assert load_context.unpublished_notes(topic, second) == [], "not the first load of its hour"
    waiting = unpublished_since(topic)
    assert waiting is not None
    assert waiting.load == 2
