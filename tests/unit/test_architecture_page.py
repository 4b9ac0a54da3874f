"""docs/architecture.md names files that are there, and every folder of the foundation and of the broker."""

from __future__ import annotations

import re

import pytest

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
ROOTS = ("", "docs/", "broker/", "broker/millrace/", "broker/millrace_broker/", "plugins/millrace_avro/")
"""Folders in which a path in the page may begin."""
PATHS = sorted(set(re.findall(r"`((?:[\w.]+/)*[\w.]+(?:\.py|\.md|\.toml|/))`", PAGE)))


def test_the_page_names_files() -> None:
    assert len(PATHS) > 40


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_the_page_is_there(path: str) -> None:
    assert any((REPOSITORY / root / path).exists() for root in ROOTS)


@pytest.mark.parametrize("package", ["millrace", "millrace_broker"])
def test_every_folder_has_its_row(package: str) -> None:
    folders = [path.parent.name for path in (REPOSITORY / "broker" / package).glob("*/__init__.py")]
    assert folders
    assert [name for name in folders if f"| `{name}/` |" not in PAGE] == []
