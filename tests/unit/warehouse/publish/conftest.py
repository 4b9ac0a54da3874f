"""A local warehouse with its own catalog, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.interface import Storage
from tests.unit.warehouse.publish.publishing import Publish, publish_in


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "w").mkdir()
    return open_storage(str(tmp_path / "w"))


@pytest.fixture
def catalog(storage: Storage) -> Iterator[Catalog]:
    with connect(storage) as catalog:
        yield catalog


@pytest.fixture
def publish(storage: Storage, catalog: Catalog) -> Publish:
    return partial(publish_in, storage, catalog)
