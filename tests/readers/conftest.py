"""Readers with none of Millrace's code, and warehouses for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.last_line import LastLine
from tests.published import Warehouse, warehouse
from tests.readers.engines import PYTHON, Engine, environment

_last_line = LastLine("READERS")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure

_INSTALL = """
import duckdb, importlib.util, pathlib
for name in ("avro", "iceberg"):
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    (path,) = pathlib.Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension")
    duckdb.execute(f"INSTALL '{path}'")
"""
_SHELL = """#!/usr/bin/env python
import sys, duckdb
assert sys.argv[1] == "-c"
print(duckdb.sql(sys.argv[2]))
"""
"""Stands for DuckDB's command line, which the readers' environment does not have."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The readers' home folder: DuckDB has its extensions there, as if it had fetched them."""
    if not PYTHON.exists():
        pytest.skip("the readers are not installed: run `make test-readers`")
    folder = tmp_path_factory.mktemp("home")
    (folder / "bin").mkdir()
    (folder / "bin" / "duckdb").write_text(_SHELL)
    (folder / "bin" / "duckdb").chmod(0o755)
    subprocess.run([PYTHON, "-c", _INSTALL], env=environment(folder), check=True)
    return folder


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse without a load; its path has a space and a quote."""
    with warehouse(tmp_path / "Ware's house") as made:
        yield made


@pytest.fixture
def duckdb(home: Path) -> Iterator[Engine]:
    engine = Engine(home, "duckdb")
    yield engine
    engine.close()
