"""A place in memory for tests that open logs thousands of times: there fsync costs nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the machine has one, else an ordinary one."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="millrace-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
