"""Last line of `make compat`, on tiny suites: all ran, something is missing, no time was left, a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

SUITE = """
def test_client(): pass
def test_broker(needs_maven): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_console.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(
        "from tests.compat.conftest import needs_maven, pytest_runtest_logreport\n"
        "from tests.compat.conftest import pytest_sessionfinish, pytest_unconfigure\n"
        "from tests.conftest import pytest_runtest_setup\n"
    )
    return tmp_path


def run(folder: Path, path: str, until: str = "inf") -> tuple[int, list[str]]:
    """Exit code and the lines printed, with programs looked for in `path` only, and time until `until`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={
            "PATH": path,
            "MILLRACE_TESTS_UNTIL": until,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def with_maven(folder: Path) -> str:
    (folder / "mvn").write_text("#!/bin/sh\n")
    (folder / "mvn").chmod(0o755)
    return str(folder)


def test_without_maven_the_last_line_names_what_was_left_out_and_the_run_fails(folder: Path) -> None:
    code, lines = run(folder, "/nowhere")
    assert (code, lines[-1]) == (1, "COMPAT PARTIAL: ran=1 skipped=1 (console)"), lines


def test_when_everything_ran_the_last_line_says_so(folder: Path) -> None:
    code, lines = run(folder, with_maven(folder))
    assert (code, lines[-1]) == (0, "COMPAT OK: ran=2 skipped=0"), lines


def test_without_time_the_last_line_says_how_many_tests_did_not_run_and_the_run_passes(folder: Path) -> None:
    code, lines = run(folder, with_maven(folder), until="0")
    assert (code, lines[-1]) == (0, "COMPAT PARTIAL: ran=0 skipped=2 (console)"), lines
    assert any("SKIPPED [2]" in line and "no time was left" in line for line in lines), lines


@pytest.mark.parametrize("maven", [True, False])
def test_a_failure_is_pytest_s_own_and_nothing_is_said_to_be_ok(folder: Path, maven: bool) -> None:
    (folder / "test_broken.py").write_text("def test_fails(): assert False\n")
    code, lines = run(folder, with_maven(folder) if maven else "/nowhere")
    assert code == 1
    assert not any("COMPAT" in line for line in lines), lines
