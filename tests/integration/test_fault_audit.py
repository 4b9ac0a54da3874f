"""`make fault-audit`, in its shortest form: a fault of each carrier, and five clean windows under kills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import run_python


@pytest.mark.long
def test_a_fault_of_each_carrier_is_found_and_clean_windows_under_kills_raise_no_alarm(
    tmp_path: Path,
) -> None:
    rows = ("log-drop", "mirror-drop-and-repeat", "load-repeat", "mirror-alter", "clean")
    options = [word for row in rows for word in ("--only", row)]
    done = run_python(
        "-m",
        "tests.trials.faultaudit",
        "--windows",
        "5",
        "--folder",
        str(tmp_path),
        *options,
        timeout_s=1_800,
    )
    last = done.stdout.splitlines()[-1]
    well = r"AUDIT OK: faults=(\d+) found=\1 attributed=\1 named=\1 false_alarms=0 windows=5"
    assert re.fullmatch(well, last), done.stdout + done.stderr
    assert done.returncode == 0
