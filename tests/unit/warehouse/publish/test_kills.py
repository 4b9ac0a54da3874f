"""Loads, publications and upkeep at once, killed at random: on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import postgres
from tests.kill_rounds import kill_rounds
from tests.live_rounds import live_rounds
from tests.support import ROUNDS


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A catalog's name; what describes it is in the environment."""
    if request.param == "sqlite":
        yield ""
        return
    if not postgres.installed():
        pytest.skip("PostgreSQL is not installed")
    with postgres.postgresql() as url:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
        monkeypatch.setenv(
            "PYICEBERG_CATALOG__LAKE__URI", url.replace("postgresql://", "postgresql+psycopg://")
        )
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}")
        yield "lake"


@pytest.mark.slow
@pytest.mark.soak
def test_each_row_is_in_history_and_in_the_table_once_whoever_is_killed(tmp_path: Path, catalog: str) -> None:
    warehouse = tmp_path / "w"
    warehouse.mkdir()
    kill_rounds(str(warehouse), catalog, ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize(
    "catalog", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_every_look_at_branch_live_shows_each_row_once_whoever_is_killed(
    tmp_path: Path, catalog: str
) -> None:
    warehouse = tmp_path / "w"
    warehouse.mkdir()
    live_rounds(str(warehouse), catalog, ROUNDS)
