"""Branch `live` of a table after a re-load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from millrace_warehouse.commands import loads
from millrace_warehouse.commands.loads import ReloadedLoads, reload_loads
from millrace_warehouse.context import Context
from millrace_warehouse.load.range_writer import LoadContext
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import CatalogError, connect, table_identifier
from millrace_warehouse.publish.live import Live
from millrace_warehouse.requests import Reload
from tests.unit.warehouse.memory_log import START, TOPIC, event
from tests.unit.warehouse.mended import Mended, later_event


@pytest.fixture
def scene(tmp_path: Path) -> Mended:
    """One load: two rows, and a record that only the mended decoder can read."""
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START), later_event(2, START)])
    scene.load()
    scene.fixed = True
    return scene


def read_again(scene: Mended, monkeypatch: pytest.MonkeyPatch) -> ReloadedLoads:
    @contextmanager
    def context(*_: object) -> Iterator[LoadContext]:
        yield scene.reload_run().context

    monkeypatch.setattr(loads, "load_context", context)
    places: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "registry": "http://127.0.0.1:1"}
    request = Reload(topic=TOPIC, warehouse=str(scene.folder), loads=[1], reason="a test", **places)
    return reload_loads(MagicMock(), request)


def live_rows(scene: Mended) -> int:
    with connect(scene.storage()) as catalog:
        table = catalog.load_table(table_identifier(TOPIC))
        rows: int = len(table.scan().use_ref(LIVE).to_arrow())
        return rows


def test_the_branch_shows_a_new_edition_at_once(scene: Mended, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(scene.storage()) as catalog:
        Live(Context(storage=scene.storage(), catalog=catalog), scene.topic).follow(on=True)
    assert live_rows(scene) == 2
    reloaded = read_again(scene, monkeypatch)
    assert (reloaded.loads[0].edition, reloaded.notes) == (2, [])
    assert live_rows(scene) == 3


def test_a_warehouse_without_tables_gets_no_catalog(scene: Mended, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_again(scene, monkeypatch).notes == []
    assert not (scene.folder / "catalog.db").exists()


def test_a_catalog_that_does_not_answer_is_a_note(scene: Mended, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CatalogError("the catalog does not answer")

    monkeypatch.setattr("millrace_warehouse.publish.live.connect", fail)
    reloaded = read_again(scene, monkeypatch)
    assert reloaded.loads[0].edition == 2
    assert reloaded.notes == [
        f"{TOPIC}: branch live is behind until the next load or publication: the catalog does not answer"
    ]
