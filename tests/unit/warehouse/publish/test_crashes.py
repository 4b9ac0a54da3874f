"""A publication that dies at any step is made whole by the next one: each row once, each record recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.warehouse.publish.crashing import SCENES

CASES = [(scene, step) for scene, steps in SCENES.items() for step in steps]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashes")
    module = "tests.unit.warehouse.publish.crashing"
    subprocess.run([sys.executable, "-m", module, str(folder)], check=True, timeout=300)
    return folder


@pytest.mark.parametrize(("scene", "step"), CASES)
def test_a_run_that_dies_at_any_step_is_made_whole_by_the_next(crashed: Path, scene: str, step: str) -> None:
    died, ran = json.loads((crashed / "codes.json").read_text())[f"{scene}, {step}"]
    assert (died, ran) == (9, 0)
    seen = json.loads((crashed / f"{scene}, {step}" / "seen.json").read_text())
    rows = {"first": 5, "later": 9, "reload": 9, "rebuild": 9}[scene]
    assert seen["offsets"] == list(range(rows))
    assert sum(added - removed for _, _, added, removed in seen["hours"]) == rows
    assert [int(name[:10]) for name in seen["recorded"]] == list(range(1, seen["publication"] + 1))
    assert not seen["again"]
