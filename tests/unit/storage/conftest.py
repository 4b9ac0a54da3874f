"""A place in memory for tests that open logs thousands of times: there fsync costs nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In the place of pytest's own: a directory in memory where the machine has one."""
    path = Path(tempfile.mkdtemp(prefix="millrace-", dir=MEMORY if MEMORY.is_dir() else None))
    yield path
    shutil.rmtree(path)
