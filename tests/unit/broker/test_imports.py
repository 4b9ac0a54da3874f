"""Modules that a broker's process holds in memory before it does anything."""

from __future__ import annotations

import json
import subprocess
import sys

FOREIGN = (
    "fastavro",
    "httpx",
    "fastapi",
    "sqlalchemy",
    "rich",
    "confluent_kafka",
    "numpy",
    "pyarrow",
    "pyspark",
)


def test_a_broker_imports_nothing_of_avro_http_tables_or_other_clients() -> None:
    code = "import json, sys, millrace_commands.broker; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "kazoo" in loaded
    assert not loaded & set(FOREIGN)
