"""docs/architecture.md names files that are there, and every folder of the broker."""

from __future__ import annotations

import re

import pytest

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
ROOTS = ("", "docs/", "broker/", "broker/millrace/", "plugins/millrace_avro/")
"""Where a path in the page may begin."""
PATHS = sorted(set(re.findall(r"`((?:[\w.]+/)*[\w.]+(?:\.py|\.md|\.toml|/))`", PAGE)))


def test_the_page_names_files() -> None:
    assert len(PATHS) > 40


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_the_page_is_there(path: str) -> None:
    assert any((REPOSITORY / root / path).exists() for root in ROOTS)


def test_every_folder_of_the_broker_has_its_row() -> None:
    packages = (path.parent.name for path in (REPOSITORY / "broker" / "millrace").glob("*/__init__.py"))
    assert [name for name in packages if f"`{name}/`" not in PAGE] == []
