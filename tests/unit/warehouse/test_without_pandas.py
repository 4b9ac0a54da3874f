"""Modules that Millrace's own processes leave out of memory, and what still works without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERIFIED = """
import sys
from contextlib import suppress
from millrace.cli import cli
from millrace.errors import MillraceError
with suppress(MillraceError):
    cli(["verify", "--warehouse", sys.argv[1]], standalone_mode=False)
import pyarrow.dataset
print(pyarrow.array([1]).to_pylist(), "pyiceberg" in sys.modules, "pandas" in sys.modules)
import pandas
print(len(pandas.DataFrame({"n": [1, 2]})))
"""


def test_a_command_of_the_warehouse_imports_no_pandas_and_leaves_it_to_be_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", VERIFIED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-2:] == ["[1] True False", "2"]
