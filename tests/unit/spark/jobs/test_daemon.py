"""The PySpark that a job's Python workers import: `jobs.daemon` in its own process, before it forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SHOWS_THE_PATH = """
import json, sys, types
stand_in = types.ModuleType("pyspark.daemon")
stand_in.manager = lambda: print(json.dumps(sys.path))
sys.modules["pyspark.daemon"] = stand_in
from millrace_spark.jobs.daemon import main
main()
"""


@pytest.mark.parametrize("is_the_jobs", [True, False])
def test_workers_leave_out_sparks_zips_where_the_same_pyspark_is_installed_and_no_other_zip(
    tmp_path: Path, is_the_jobs: bool
) -> None:
    import pyspark

    home = pyspark.__path__[0] if is_the_jobs else str(tmp_path)
    sparks, own = f"{home}/python/lib/pyspark.zip", tmp_path / "own.zip"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("module.py", "")
    path = os.pathsep.join([sparks, str(own), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SHOWS_THE_PATH],
        env={**os.environ, "SPARK_HOME": home, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert str(own) in seen
    assert (sparks in seen) == (not is_the_jobs)
