"""Publishers that are killed at random while others publish the same: on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import postgres
from tests.publishers import check, killed_publishers
from tests.support import ROUNDS


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, str]]]:
    """A catalog's name, and the environment that describes it."""
    if request.param == "sqlite":
        yield "", {}
        return
    if not postgres.installed():
        pytest.skip("PostgreSQL is not installed")
    with postgres.postgresql() as url:
        env = {
            "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
            "PYICEBERG_CATALOG__LAKE__URI": url.replace("postgresql://", "postgresql+psycopg://"),
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}",
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield "lake", env


@pytest.mark.soak
def test_publishers_that_are_killed_and_race_publish_every_row_once(
    tmp_path: Path, catalog_settings: tuple[str, dict[str, str]]
) -> None:
    name, env = catalog_settings
    warehouse = str(tmp_path / "w")
    (tmp_path / "w").mkdir()
    loads = killed_publishers(warehouse, name, env, kills=ROUNDS)
    check(warehouse, name, loads)
