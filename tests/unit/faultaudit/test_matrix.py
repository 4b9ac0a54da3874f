"""Faults that the matrix injects without a finding: exactly those that docs/audit.md marks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.trials.faultaudit.matrix import rows

PAGE = Path(__file__).parents[3] / "docs" / "audit.md"


def test_the_page_marks_the_faults_that_the_matrix_injects_and_expects_not_to_find() -> None:
    page = PAGE.read_text()
    section = page[page.index("## What the audit cannot see") : page.index("## Fast and strong fingerprints")]
    marked = set(re.findall(r"^- \*\*([^*]+)\.\*\*\\\*", section, re.MULTILINE))
    assert marked == {row.unseen for row in rows() if row.unseen}
