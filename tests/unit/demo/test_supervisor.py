"""Children that end are started again, at the address they had; not for ever."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_demo.up import MAX_RESTARTS, Supervisor
from tests.support import wait_until

ENDS = "import sys; print('ready: it listens on', 'h:1' if len(sys.argv) == 1 else sys.argv[1:]); sys.exit(3)"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path)
    yield made
    made.stop()


def test_a_child_that_ends_again_and_again_ends_everything_with_a_line_that_says_so(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    told: list[str] = []
    command = [sys.executable, "-c", ENDS]
    child = supervisor.start("it", command, ("--listen", "{address}"))
    assert wait_until("it says where it listens", lambda: child.address) == "h:1"
    with pytest.raises(MillraceError, match=r"it ended with exit code 3: .*; it has ended 4 times") as error:
        supervisor.watch(told.append)
    assert str(tmp_path / "it.log") in str(error.value)
    assert [line.partition(":")[0] for line in told] == ["it ended with exit code 3"] * MAX_RESTARTS
    lines = (tmp_path / "it.log").read_text().splitlines()
    assert lines[1:] == ["ready: it listens on ['--listen', 'h:1']"] * MAX_RESTARTS


def test_a_private_deployment_is_nobody_elses_to_read(tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs"
    logs.mkdir(parents=True)  # by a start before it
    supervisor = Supervisor(logs, is_private=True)
    made = tmp_path / "data" / "made"
    command = [sys.executable, "-c", f"import os; os.mkdir({str(made)!r}); print('ready: it is there h:1')"]
    child = supervisor.start("it", command)
    wait_until("the folder", lambda: child.address)
    assert [path.stat().st_mode & 0o777 for path in (logs, made)] == [0o700, 0o700]
    supervisor.stop()


def test_check_names_a_child_that_has_ended(supervisor: Supervisor) -> None:
    child = supervisor.start("it", [sys.executable, "-c", ENDS])
    wait_until("it says where it listens", lambda: child.address)
    wait_until("it has ended by itself", lambda: child.exit_code is not None)
    with pytest.raises(MillraceError, match="it ended with exit code 3: ready: it listens on h:1"):
        supervisor.check()
