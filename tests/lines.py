"""Lines of product code by package, beside those of the last release: `make lines`.

Counts every line of every Python file. A package that grew by more than a twentieth needs a reason in
`REASONS`; without one the command ends with 1. At a release `LAST_RELEASE` takes the numbers of the day and
`REASONS` is emptied.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import REPOSITORY

LAST_RELEASE = {
    "millrace": 11557,
    "millrace_agent": 2424,
    "millrace_audit": 11272,
    "millrace_broker": 20220,
    "millrace_commands": 2363,
    "millrace_consumer": 1185,
    "millrace_demo": 2864,
    "millrace_mirror": 3017,
    "millrace_registry": 4673,
    "millrace_airflow": 2158,
    "millrace_avro": 1563,
    "millrace_spark": 3123,
    "millrace_warehouse": 16196,
    "pyspark_millrace": 8,
    "dags": 250,
}
"""Lines of each package: before the first release, those of the day on which the packages were split."""
REASONS: dict[str, str] = {
    "millrace": "the deployment file; the frame of web pages; tree watches; progress of commands",
    "millrace_agent": "messages of any format are audited, with a record header",
    "millrace_audit": "rules of the verdict in words; the console's pages; readers that share a cluster",
    "millrace_broker": "lanes of clients; one syncfs for many logs; short ways for plain batches",
    "millrace_commands": "topics policy, and the sentences of addresses and topics that are wrong",
    "millrace_mirror": "what a restored origin or copy has lost; groups that move",
    "millrace_registry": "ids after a restore; an import names what it leaves out",
    "millrace_demo": "schemas drafted from JSON; Java services; the branch of fresh rows",
    "millrace_avro": "JSON objects as columns",
    "millrace_spark": "the resident load, and loads without Spark; drivers on YARN, one for a run",
    "millrace_warehouse": "formats besides Avro; the branch of fresh rows; layouts; HDFS with Kerberos; Hive",
}
"""Reasons of packages that grew since the last release."""
ALLOWED_GROWTH = 1.05


def lines() -> dict[str, int]:
    """Count the lines of each package now."""
    packages = [
        path.parent for root in ("broker", "plugins") for path in (REPOSITORY / root).glob("*/__init__.py")
    ]
    counted = {path.name: _lines(path) for path in sorted(packages)}
    return {**counted, "dags": _lines(REPOSITORY / "dags")}


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


def main() -> int:
    """Print the table; 1 when a package grew and nobody says why."""
    row = "{:20} {:>7} {:>13} {:>7}  {}".format
    print(row("package", "lines", "last release", "", ""))
    counted, unexplained = lines(), False
    for package, count in counted.items():
        before = LAST_RELEASE.get(package, 0)
        change = f"{count / before - 1:+.1%}" if before else "new"
        reason = REASONS.get(package, "")
        if count > before * ALLOWED_GROWTH and not reason:
            reason, unexplained = "grew: say why in REASONS of tests/lines.py", True
        print(row(package, count, before, change, reason).rstrip())
    print(row("all", sum(counted.values()), sum(LAST_RELEASE.values()), "", "").rstrip())
    return int(unexplained)


if __name__ == "__main__":
    sys.exit(main())
