"""A warehouse for each test of a module, as the module's `template` has made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.published import Warehouse, warehouse


@pytest.fixture
def w(template: Path) -> Iterator[Warehouse]:
    """The warehouse of the template again, in the same place: a table names its files by where they lie."""
    kept = template.with_name("kept")
    shutil.copytree(template, kept)
    with warehouse(template) as made:
        yield made
    shutil.rmtree(template)
    kept.rename(template)
