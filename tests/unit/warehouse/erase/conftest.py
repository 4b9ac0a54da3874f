"""A scene for each test: two loads, three hours, a member in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.warehouse.erase import scene as scenes
from tests.unit.warehouse.erase.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Two loads, as `fill` says."""
    for made in scenes.scene(tmp_path / "w"):
        scenes.fill(made)
        yield made
