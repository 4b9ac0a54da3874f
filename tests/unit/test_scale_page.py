"""docs/scale.md has the tables that its model computes."""

from __future__ import annotations

from tests.bench import scale
from tests.support import REPOSITORY


def test_the_page_has_the_tables_of_the_model() -> None:
    page = (REPOSITORY / "docs" / "scale.md").read_text()
    assert scale.by_volume() in page
    assert scale.by_death() in page
