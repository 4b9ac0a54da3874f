"""`make fault-load`, in its shortest form: every kind of kill at least once, two power cuts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import run_python


@pytest.mark.long
def test_a_few_loads_survive_kills_of_every_part_and_power_cuts(tmp_path: Path) -> None:
    options = ["--loads", "6", "--power-cuts", "2", "--folder", str(tmp_path)]
    done = run_python("-m", "tests.trials.faultload", *options, timeout_s=1_800)
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"FAULT-LOAD OK: kills=\d+ lost=0 duplicated=0", last), done.stdout + done.stderr
    assert done.returncode == 0
