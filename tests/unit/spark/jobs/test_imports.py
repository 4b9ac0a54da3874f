"""Imports of Spark's Python workers for a job: each worker of every application imports anew."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FOREIGN = {"pandas", "pyiceberg", "pydantic", "pyspark"}


@pytest.mark.parametrize(
    ("modules", "foreign"),
    [
        # A task asks the registry for schemas, with the client that came with it.
        ("millrace_spark.load_task, millrace_warehouse.load.merge, millrace_registry.client", FOREIGN),
        ("millrace_spark.mirror_batch", {*FOREIGN, "numpy", "pyarrow", "httpx"}),
    ],
)
def test_a_task_imports_nothing_of_its_job(modules: str, foreign: set[str]) -> None:
    code = f"import json, sys, {modules}, millrace_spark.jobs.tasks; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in json.loads(done.stdout)} & foreign
