"""`make fault-restore`, in its shortest form: the auditor's database under traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_python


@pytest.mark.long
def test_an_auditors_database_from_an_older_copy_is_filled_again_and_changes_no_verdict(
    tmp_path: Path,
) -> None:
    options = ["--only", "auditor", "--folder", str(tmp_path)]
    done = run_python("-m", "tests.trials.faultrestore", *options, timeout_s=1_800)
    last = done.stdout.splitlines()[-1]
    well = "RESTORE OK: stores=1 restores=3 lost=0 wrong=0 false_alarms=0"
    assert last == well, done.stdout + done.stderr
    assert done.returncode == 0
