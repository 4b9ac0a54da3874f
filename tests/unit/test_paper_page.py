"""docs/paper.md names code and tests for every row of the paper: each of them must be there."""

from __future__ import annotations

import re

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "paper.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]


def test_every_row_of_the_paper_has_its_line_in_order() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 64))


def test_every_row_names_code_and_a_test_or_benchmark() -> None:
    for row in ROWS:
        _, _, _, code, shown, _ = row.split("|")
        assert re.search(r"`[\w/.-]+`", code), row
        assert re.search(r"`[\w/.:-]+`", shown), row


def test_every_file_and_test_the_page_names_is_there() -> None:
    for name in re.findall(r"`((?:broker|plugins|dags|schemas|deploy|tests|docs)/[\w/.-]*(?:::\w+)?)`", PAGE):
        path, _, test = name.partition("::")
        assert (REPOSITORY / path).exists(), name
        if test:
            assert re.search(rf"def {test}\b", (REPOSITORY / path).read_text()), name
