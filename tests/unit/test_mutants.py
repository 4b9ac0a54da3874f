"""Both files of mutants: each mutant still fits the source, and every row of the paper has one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.trials.mutants import read_mutants, rows_of_the_page, rule_mutants
from tests.trials.mutation import Mutation
from tests.trials.sim import mutants as simulator

MUTANTS = [*read_mutants(), *rule_mutants()]


@pytest.mark.parametrize("mutant", [*MUTANTS, *simulator.read_mutants()], ids=lambda mutant: mutant.what)
def test_a_mutant_changes_one_place_of_its_file_and_compiles(mutant: Mutation) -> None:
    assert bool(mutant.drop) != bool(mutant.replace and mutant.by)
    text, changed = (REPOSITORY / mutant.file).read_text(), mutant.apply(REPOSITORY)
    assert changed != text
    if mutant.file.endswith(".py"):
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        compile(changed, mutant.file, "exec")


SOURCE = """
class Line:
    def add(self, size):  # of a batch
        # "size + 1" in a comment is no match
        if (
            self.end
            + size > LIMIT  # too large
        ):
            raise Full
        self.end += size

def add(size):
    return size + 1
"""


def mutated(tmp_path: Path, within: str, **change: str) -> str:
    (tmp_path / "line.py").write_text(SOURCE)
    return Mutation(what="a change", file="line.py", within=within, **change).apply(tmp_path)


def test_an_expression_is_found_whatever_its_line_breaks_and_comments(tmp_path: Path) -> None:
    changed = mutated(tmp_path, "Line.add", replace="self.end + size > LIMIT", by="False")
    assert changed == SOURCE.replace("self.end\n            + size > LIMIT", "(False)")


def test_statements_are_replaced_with_their_indentation_and_dropped_as_pass(tmp_path: Path) -> None:
    changed = mutated(tmp_path, "Line.add", replace="self.end += size", by="self.end += 1\nself.size = size")
    assert changed == SOURCE.replace("self.end += size", "self.end += 1\n        self.size = size")
    assert mutated(tmp_path, "Line.add", drop="raise Full") == SOURCE.replace("raise Full", "pass")


@pytest.mark.parametrize(
    ("within", "expression"), [("Line.add", "size"), ("Line.add", "size + 1"), ("Line.remove", "size")]
)
def test_a_place_that_is_there_twice_or_not_at_all_is_an_error(
    tmp_path: Path, within: str, expression: str
) -> None:
    with pytest.raises(
        ValueError, match=f"a change: {within} of line.py must contain this once, not [02] times: "
    ):
        mutated(tmp_path, within, replace=expression, by="0")


def test_every_row_of_the_paper_has_a_mutant() -> None:
    assert {mutant.row for mutant in MUTANTS} - {0} == set(rows_of_the_page())


def test_a_mutant_is_for_a_test_that_is_there_and_that_its_row_names() -> None:
    rows = rows_of_the_page()
    for mutant in MUTANTS:
        test, _, _ = mutant.test.partition("[")
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\b", (REPOSITORY / path).read_text(), re.MULTILINE), mutant
        assert not mutant.row or f"`{test}`" in rows[mutant.row], mutant
