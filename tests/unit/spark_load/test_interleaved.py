"""Any order of loads, hours, re-loads and expiry, cut off anywhere: each hour shows what it says it holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support import ROUNDS
from tests.unit.spark_load.interleaved import Scenario

STEPS = 18


@pytest.mark.parametrize("seed", range(8))
def test_every_order_of_things_shows_the_newest_editions_of_what_is_folded(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1000 + 10 * ROUNDS))
def test_every_order_of_things_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


def run(seed: int, folder: Path) -> None:
    scenario = Scenario(folder, random.Random(seed))
    for _ in range(STEPS):
        scenario.step()
    scenario.settle()
