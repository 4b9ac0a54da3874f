"""Order of the reports of the warehouse's reader, round by round on a real warehouse."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace_audit.reports.messages import AuditRecord, TableCount, WarehouseState
from millrace_audit.reports.turns import Turn
from millrace_warehouse.audit import reader
from millrace_warehouse.audit.reader import WarehouseNumbers, WarehouseReader
from millrace_warehouse.publish.catalog import connect
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
        self.published += [self.codec.decode(value) for value in values]


def test_a_table_is_reported_as_there_before_its_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that has rows and was long reported as missing would count as gone."""
    around = Around()
    for name in ("Session", "TurnTaker", "ClusterClient"):
        monkeypatch.setattr(reader, name, Around)
    monkeypatch.setattr(reader, "AuditPublisher", lambda *_, **__: around)
    monkeypatch.setattr(reader, "SchemaRegistryClient", lambda _: Ids())
    monkeypatch.setattr(reader, "cluster_name", lambda *_: "aggregate")
    mended, storage = Mended(tmp_path), open_storage(str(tmp_path))
    mended.log.append_events(0, [START])
    mended.load()
    request = AuditWarehouse(warehouse=str(tmp_path), bootstrap="", registry="", zookeeper="")
    counting = WarehouseReader(request, threading.Event(), WarehouseNumbers())
    counting._turn, around.codec = TURN, counting._codec
    counting.count_once()
    with connect(storage) as catalog:
        publish_in(storage, catalog, H10)
    around.published.clear()
    counting.count_once()
    state, count = [r for r in around.published if isinstance(r, WarehouseState | TableCount)]
    assert isinstance(state, WarehouseState)
    assert state.exists
    assert isinstance(count, TableCount)
