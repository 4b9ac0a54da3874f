"""The book in docs/inside/ and the READMEs of the packages name what is there, and stay short."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support import REPOSITORY

MAX_LINES, MAX_FILES = 150, 6
"""Most lines and most files of a chapter."""
PATHS = re.compile(r"`((?:[\w-]+/)*[\w-]+(?:\.(?:py|c|md|toml)|/)|tests/[\w./-]+)`")
SOURCES = re.compile(r"`((?:\w+/)*\w+\.(?:py|c))`")
LINKS = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
SECTIONS = (
    "## What it owns",
    "## What it refuses",
    "## The three most important files",
    "## How to test it alone",
)
PACKAGES = sorted(
    path.parent
    for folder in ("broker", "plugins")
    for path in (REPOSITORY / folder).glob("*/__init__.py")
    if path.parent.name != "pyspark_millrace"
)
CHAPTERS = sorted((REPOSITORY / "docs" / "inside").glob("[0-9]*.md"))
CONTENTS = REPOSITORY / "docs" / "inside" / "README.md"


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_the_contents_have_a_line_for_each_chapter() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\((.+?)\)", CONTENTS.read_text(), re.MULTILINE)
    assert listed == [chapter.name for chapter in CHAPTERS]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=name)
def test_a_chapter_is_short_and_names_few_files(chapter: Path) -> None:
    text = chapter.read_text()
    named = {*SOURCES.findall(text)}
    files = {path for path in named if (REPOSITORY / path).exists()}
    assert text.count("\n") <= MAX_LINES
    assert 1 < len(files) <= MAX_FILES
    shortened = named - files
    assert [path for path in shortened if not any(file.endswith(f"/{path}") for file in files)] == []


@pytest.mark.parametrize("page", [CONTENTS, *CHAPTERS], ids=name)
def test_a_link_in_the_book_leads_to_a_page(page: Path) -> None:
    assert [link for link in LINKS.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_package_has_a_page_with_its_four_sections(package: Path) -> None:
    lines = (package / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [*SECTIONS]
    assert len(lines) <= 45


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_path_in_the_page_of_a_package_is_there(package: Path) -> None:
    named = PATHS.findall((package / "README.md").read_text())
    assert named
    assert [path for path in named if not ((package / path).exists() or (REPOSITORY / path).exists())] == []


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_the_page_of_a_package_names_three_files_that_are_there(package: Path) -> None:
    section = (package / "README.md").read_text().split(SECTIONS[2])[1].split(SECTIONS[3])[0]
    files = re.findall(r"^- `([\w./]+)`", section, re.MULTILINE)
    assert len(files) == 3
    assert all((package / file).is_file() for file in files)


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_the_command_that_tests_a_package_names_tests_that_are_there(package: Path) -> None:
    block = (package / "README.md").read_text().split("```bash\n")[1].split("```")[0]
    command, *options = shlex.split(block.replace("\\\n", ""))
    tests = [word for word in options if word.startswith("tests/")]
    assert (command, options[:2]) == (".venv/bin/python", ["-m", "pytest"])
    assert tests
    assert [path for path in tests if not [*REPOSITORY.glob(path)]] == []
