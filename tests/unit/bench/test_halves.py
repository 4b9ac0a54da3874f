"""One page of two generated halves: each benchmark replaces its own and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.halves import PAGE, write_half


def test_a_half_that_is_written_anew_leaves_every_other_byte(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: a -->\nold\n<!-- end: a -->\nbetween  \n\n")

    write_half(page, "b", "# B\n\n\n")
    write_half(page, "a", "# A\nnew")

    assert page.read_text() == (
        "before\n<!-- begin: a -->\n# A\nnew\n<!-- end: a -->\nbetween  \n\n"
        "<!-- begin: b -->\n# B\n<!-- end: b -->\n"
    )


def test_the_same_half_twice_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_half(page, "a", "text")
    first = page.read_bytes()

    write_half(page, "a", "text")

    assert page.read_bytes() == first


def test_a_half_without_its_end_is_an_error_that_names_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: a -->\ntext that somebody has cut off")

    with pytest.raises(ValueError, match="has no <!-- end: a -->"):
        write_half(page, "a", "new")


def test_the_page_of_the_project_has_the_broker_half_marked() -> None:
    text = PAGE.read_text()

    assert text.count("\n<!-- begin: broker -->\n# The broker, measured\n") == 1
    assert text.count("<!-- end: broker -->\n") == 1
