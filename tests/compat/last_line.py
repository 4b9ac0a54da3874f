"""The last line of `make compat`: whether every suite ran, and an exit code that says so, too.

COMPAT OK: ran=N skipped=0
COMPAT PARTIAL: ran=N skipped=M (names)       exit code 1: without Maven there is no Apache Kafka to run
nothing                                       when a test failed: pytest's own words and exit code stand
"""

from __future__ import annotations

import pytest

from tests.peers import maven

_ran: set[str] = set()
_skipped: set[str] = set()
_last_line: list[str] = []


@pytest.fixture(scope="session")
def needs_maven() -> None:
    """Skip what needs jars of other projects where Maven is missing; the last line names it."""
    if not maven.available():
        pytest.skip("Maven is not installed (Debian: apt-get install maven)")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what ran and what was left out."""
    if report.skipped:
        _skipped.add(report.nodeid)
    elif report.when == "call":
        _ran.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Decide on the line, and let a run that left something out fail."""
    if exitstatus != pytest.ExitCode.OK:
        return
    if not _skipped:
        _last_line.append(f"COMPAT OK: ran={len(_ran)} skipped=0")
        return
    files = sorted({nodeid.partition("::")[0].rpartition("/")[2] for nodeid in _skipped})
    names = ", ".join(name.removeprefix("test_").removesuffix(".py") for name in files)
    _last_line.append(f"COMPAT PARTIAL: ran={len(_ran)} skipped={len(_skipped)} ({names})")
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Print the line below pytest's own summary."""
    for line in _last_line:
        print(line, flush=True)
