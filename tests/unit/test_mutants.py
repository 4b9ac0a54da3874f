"""tests/trials/mutants.toml is whole: a fault for every row of the paper, and each can still be put in."""

from __future__ import annotations

import re

import pytest

from tests.support import REPOSITORY
from tests.trials.mutants import Mutant, apply, read_mutants, rows_of_the_page, rule_mutants

MUTANTS = [*read_mutants(), *rule_mutants()]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_can_be_made_of_its_file(mutant: Mutant) -> None:
    assert apply(mutant, REPOSITORY) != (REPOSITORY / mutant.file).read_text()


def test_every_row_of_the_paper_has_a_mutant() -> None:
    assert {mutant.row for mutant in MUTANTS} - {0} == set(rows_of_the_page())


def test_a_mutant_is_for_a_test_that_is_there_and_that_its_row_names() -> None:
    rows = rows_of_the_page()
    for mutant in MUTANTS:
        test, _, _ = mutant.test.partition("[")
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\b", (REPOSITORY / path).read_text(), re.MULTILINE), mutant
        assert not mutant.row or f"`{test}`" in rows[mutant.row], mutant
