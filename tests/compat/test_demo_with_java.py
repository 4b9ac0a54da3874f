"""The whole pipeline with Java services that send JSON, audited by the jar and their properties alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

from millrace_demo.proof import loaded_files
from tests.compat.java_interceptor import BUILD_S
from tests.support import REPOSITORY, run_millrace

EVENTS = 2000
JARS = REPOSITORY / "plugins" / "java" / "demo" / "target" / "jars"


def test_every_json_of_a_java_service_is_proven_up_to_the_table(needs_maven: None, tmp_path: Path) -> None:
    built = subprocess.run(
        ["make", "java-service"], cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_S
    )
    assert built.returncode == 0, built.stdout + built.stderr
    words = ("--events", str(EVENTS), "--hours", "2", "--keep", str(tmp_path), "--java-services", str(JARS))
    done = run_millrace("demo", *words, timeout_s=400)
    output = done.stdout + done.stderr
    counted = f"published={EVENTS} mirrored={EVENTS} loaded={EVENTS} lost=0 duplicated=0 hours_complete=4/4"
    assert done.stdout.splitlines()[-1] == f"DEMO OK: {counted}", output
    assert done.returncode == 0
    for topic in ("PageView", "SearchQuery"):
        schema = json.loads((REPOSITORY / "schemas" / f"{topic}.avsc").read_text())
        columns = pq.read_schema(loaded_files(tmp_path / "warehouse" / topic)[0]).names
        assert columns[: columns.index("_time")] == [field["name"] for field in schema["fields"][1:]]
