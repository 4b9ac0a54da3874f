"""The last line of a run whose suites must all have run, and an exit code that says so, too.

COMPAT OK: ran=N skipped=0
COMPAT PARTIAL: ran=N skipped=M (names)       exit code 1: something was left out
                                              exit code 0: only because MILLRACE_TESTS_UNTIL was over
nothing                                       when a test failed: pytest's own words and exit code stand
"""

from __future__ import annotations

import pytest

NO_TIME = "no time was left: MILLRACE_TESTS_UNTIL"


class LastLine:
    """Source of a folder's hooks in conftest.py, for the tests of that folder only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ran: set[str] = set()
        self._skipped: set[str] = set()
        self._may_pass = True
        """False once a test was skipped for another reason than NO_TIME."""
        self._line = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what ran and what was left out."""
        if report.skipped:
            self._skipped.add(report.nodeid)
            self._may_pass &= NO_TIME in str(report.longrepr)
        elif report.when == "call":
            self._ran.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Decide on the line, and let a run that left something out fail."""
        if exitstatus != pytest.ExitCode.OK or hasattr(session.config, "workerinput"):
            return  # of a run in several processes, only the one that starts the others knows all
        counts = f"ran={len(self._ran)} skipped={len(self._skipped)}"
        if not self._skipped:
            self._line = f"{self._name} OK: {counts}"
            return
        files = sorted({nodeid.partition("::")[0].rpartition("/")[2] for nodeid in self._skipped})
        names = ", ".join(name.removeprefix("test_").removesuffix(".py") for name in files)
        self._line = f"{self._name} PARTIAL: {counts} ({names})"
        if not self._may_pass:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print the line below pytest's own summary."""
        if self._line:
            print(self._line, flush=True)
