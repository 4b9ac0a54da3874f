"""A few of the histories that `make sim` runs; one in which a rule is missing is found, and shrunk."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import REPOSITORY
from tests.trials.sim.history import History
from tests.trials.sim.mutants import read_mutants
from tests.trials.sim.runs import run, shrink


def test_no_invariant_breaks_in_two_hundred_histories() -> None:
    tally = run(0, 200)
    assert tally.violations == []
    happened = [tally.counts[what] for what in ("elections", "commits", "cuts", "crashes", "acknowledged")]
    assert min(happened) > 200  # each happens in most of them


def test_a_seed_is_one_history() -> None:
    assert History.draw(7) == History.draw(7)
    assert run(7, 8).counts == run(7, 8).counts


def test_a_rule_that_is_missing_is_found() -> None:
    index = next(n for n, mutant in enumerate(read_mutants()) if mutant.what == "the minimum is not required")
    done = subprocess.run(
        [sys.executable, "-m", "tests.trials.sim", "--mutant", str(index)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    _, what = json.loads(done.stdout)
    assert "not all of" in what


def test_a_history_that_breaks_shrinks_to_the_faults_that_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    history = next(h for h in map(History.draw, range(1000)) if len(h.faults) > 10)
    wanted = {history.faults[3], history.faults[8]}
    monkeypatch.setattr(
        "tests.trials.sim.runs.violation_of", lambda drawn: "broken" if wanted <= set(drawn.faults) else None
    )
    assert set(shrink(history).faults) == wanted
