"""Order of the reports of the warehouse's reader, round by round on a real warehouse."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    AuditRecord,
    LoadCount,
    TableCount,
    WarehouseState,
)
from millrace_audit.reports.turns import Turn
from millrace_warehouse.audit import reader, tables
from millrace_warehouse.audit.reader import WarehouseNumbers, WarehouseReader
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.live import follow_load
from millrace_warehouse.requests import AuditWarehouse
from millrace_warehouse.storage import open_storage
from tests.unit.audit.test_messages import Ids
from tests.unit.warehouse.memory_log import START
from tests.unit.warehouse.mended import Mended
from tests.unit.warehouse.publish.publishing import H10, publish_in

TURN = Turn(number=4, secret=b"s", cluster_id="c", host="h", pid=1, began=0)


class Around:
    """Stand-in for the reader's ZooKeeper and cluster, with the records that it has published."""

    codec: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.published: list[AuditRecord] = []
        self.lost = threading.Event()
        self.answers = 1000
        """Number of calls that are still acknowledged."""

    @classmethod
    def connect(cls, *_: Any) -> Around:
        return cls()

    def __enter__(self) -> Around:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def counted_elsewhere(self) -> None:
        pass

    def topics(self) -> Sequence[str]:
        return ["audit-offline"]

    def publish(self, values: Sequence[bytes], **_: Any) -> None:
        self.answers -= 1
        if self.answers < 0:
            raise MillraceError("no broker answers")
        self.published += [self.codec.decode(value) for value in values]


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Around:
    around = Around()
    for name in ("Session", "TurnTaker", "ClusterClient"):
        monkeypatch.setattr(reader, name, Around)
    monkeypatch.setattr(reader, "AuditPublisher", lambda *_, **__: around)
    monkeypatch.setattr(reader, "SchemaRegistryClient", lambda _: Ids())
    monkeypatch.setattr(reader, "cluster_name", lambda *_: "aggregate")
    return around


def begin(around: Around, warehouse: Path) -> WarehouseReader:
    request = AuditWarehouse(warehouse=str(warehouse), bootstrap="", registry="", zookeeper="")
    counting = WarehouseReader(request, threading.Event(), WarehouseNumbers())
    counting._turn, around.codec = TURN, counting._codec
    counting.prepare(TURN)
    return counting


def test_the_numbers_of_a_turn_have_no_holes_when_brokers_do_not_answer(
    tmp_path: Path, around: Around
) -> None:
    mended = Mended(tmp_path)
    mended.log.append_events(0, [START])
    mended.load()
    counting = begin(around, tmp_path)
    for failed in range(4):
        around.answers = failed
        with suppress(MillraceError):
            counting.count_once()
    around.answers = 1000
    counting.count_once()
    numbered = [record for record in around.published if not isinstance(record, LoadCount)]
    assert (numbered[0].time, numbered[0].number) == (NOTHING, 0), "a heartbeat announces the turn"  # type: ignore[union-attr]
    numbers = [record.number for record in numbered]  # type: ignore[union-attr]
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > 2


def test_a_table_is_reported_as_there_before_its_first_rows(tmp_path: Path, around: Around) -> None:
    """The auditor would take a table with rows, and reported as missing for long, for one that is gone."""
    mended, storage = Mended(tmp_path), open_storage(str(tmp_path))
    mended.log.append_events(0, [START])
    mended.load()
    counting = begin(around, tmp_path)
    counting.count_once()
    with connect(storage) as catalog:
        publish_in(storage, catalog, H10)
    around.published.clear()
    counting.count_once()
    state, count = [r for r in around.published if isinstance(r, WarehouseState | TableCount)]
    assert isinstance(state, WarehouseState)
    assert state.exists
    assert isinstance(count, TableCount)


def test_the_state_of_a_topic_tells_of_branch_live_once_for_each_change(
    tmp_path: Path, around: Around
) -> None:
    mended = Mended(tmp_path)
    mended.log.append_events(0, [START])
    mended.load()
    counting = begin(around, tmp_path)
    counting.count_once()
    follow_load(mended.topic, "", on=True)
    counting.count_once()
    counting.count_once()
    follow_load(mended.topic, "", on=False)
    counting.count_once()
    states = [r for r in around.published if isinstance(r, WarehouseState) and r.topic == mended.topic.name]
    assert [state.live_through for state in states] == [None, FOR_EVER, None]


def test_a_table_is_counted_although_its_branch_live_cannot_be_looked_at(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, storage = Mended(tmp_path), open_storage(str(tmp_path))
    mended.log.append_events(0, [START])
    mended.load()
    follow_load(mended.topic, "", on=True)
    counting = begin(around, tmp_path)
    counting.count_once()
    with connect(storage) as catalog:
        publish_in(storage, catalog, H10)

    def fail(*_: object) -> None:
        raise MillraceError("loads/1.json cannot be read")

    monkeypatch.setattr(tables, "shown_through_s", fail)
    counting.count_once()
    assert counting._numbers.problems == [f"{mended.topic.name}: loads/1.json cannot be read"]
    assert any(isinstance(record, TableCount) for record in around.published)
    state = [r for r in around.published if isinstance(r, WarehouseState)][-1]
    assert (state.exists, state.trouble, state.live_through) == (True, "", None)
