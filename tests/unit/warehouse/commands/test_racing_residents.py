"""Resident loaders that race and are killed, beside a publisher; a reader sees each offset once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ROUNDS, run_python

MODULE = "tests.unit.warehouse.commands.racing_residents"


def race(folder: Path, seed: int, kills: int) -> None:
    words = (str(folder / "warehouse"), str(seed), str(kills))
    done = run_python("-m", MODULE, *words, timeout_s=60 + 10 * kills)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert " looks, " in done.stdout


@pytest.mark.slow
def test_two_loaders_and_a_publisher_that_are_killed_show_each_offset_once(tmp_path: Path) -> None:
    race(tmp_path, 1, 8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + ROUNDS))
def test_two_loaders_and_a_publisher_show_each_offset_once_for_longer(seed: int, tmp_path: Path) -> None:
    race(tmp_path, seed, 100)
