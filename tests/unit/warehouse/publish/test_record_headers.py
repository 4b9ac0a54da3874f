"""Columns of record headers in published tables, in SQL catalogs; tests/objects has a REST catalog."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pyiceberg.catalog import Catalog

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage.interface import Storage
from tests.unit.warehouse.publish.publishing import TOPIC
from tests.unit.warehouse.record_headers import FORMATS, check_table_gets_sender_columns


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_without_the_columns_of_record_headers_gets_them(
    storage: Storage, catalog: Catalog, format: str
) -> None:
    check_table_gets_sender_columns(storage, catalog, TOPIC, format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_without_the_columns_of_record_headers_gets_them_in_postgresql(
    storage: Storage, postgres_url: str, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    name = f"lake{uuid4().hex[:8]}"  # the server's database may hold tables of other catalogs
    variable = f"PYICEBERG_CATALOG__{name.upper()}"
    monkeypatch.setenv(f"{variable}__TYPE", "sql")
    monkeypatch.setenv(f"{variable}__URI", postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    monkeypatch.setenv(f"{variable}__WAREHOUSE", storage.root)
    with connect(storage, name) as catalog:
        check_table_gets_sender_columns(storage, catalog, TOPIC, format)
