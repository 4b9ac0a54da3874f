"""Machines in network namespaces for the files of `deploy/`; and the run's last line.

DEPLOY OK: ran=N skipped=0        DEPLOY PARTIAL names what this machine cannot do
"""

from __future__ import annotations

from tests.last_line import LastLine

_last_line = LastLine("DEPLOY")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure
