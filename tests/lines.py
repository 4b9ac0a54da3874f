"""Lines of product code by folder, beside what each folder should hold at most: `make lines`.

Counts every line of every Python file. A folder above its target is no error; it is a folder to read anew.
"""

from __future__ import annotations

from tests.support import REPOSITORY

TARGETS = {
    "broker": 55,
    "broker/millrace": 620,
    "broker/millrace/records": 1350,
    "broker/millrace/wire": 1400,
    "broker/millrace/storage": 1950,
    "broker/millrace/client": 900,
    "broker/millrace/coordination": 1350,
    "broker/millrace/server": 750,
    "broker/millrace/security": 900,
    "broker/millrace/broker": 950,
    "broker/millrace/handlers": 1150,
    "broker/millrace/groups": 1200,
    "broker/millrace/mirror": 1400,
    "broker/millrace/consumer": 800,
    "broker/millrace/replication": 700,
    "broker/millrace/metrics": 350,
    "broker/millrace/commands": 1200,
    "broker/millrace/service": 90,
    "broker/millrace_registry": 1650,
    "broker/millrace_audit": 4300,
    "broker/millrace_demo": 1000,
    "plugins": 17,
    "plugins/millrace_avro": 1480,
    "plugins/millrace_warehouse": 410,
    "plugins/millrace_warehouse/log": 830,
    "plugins/millrace_warehouse/storage": 700,
    "plugins/millrace_warehouse/history": 700,
    "plugins/millrace_warehouse/load": 1400,
    "plugins/millrace_warehouse/publish": 1050,
    "plugins/millrace_warehouse/verify": 700,
    "plugins/millrace_warehouse/commands": 490,
    "plugins/millrace_spark": 540,
    "plugins/millrace_spark/source": 950,
    "plugins/millrace_spark/jobs": 550,
    "plugins/millrace_spark/commands": 300,
    "plugins/millrace_airflow": 1150,
    "dags": 150,
}
"""The most lines for each folder; a folder inside it with a row of its own is counted there."""


def lines() -> dict[str, int]:
    """How many lines each folder has now."""
    counted = dict.fromkeys(TARGETS, 0)
    for root in ("broker", "plugins", "dags"):
        for path in (REPOSITORY / root).rglob("*.py"):
            folder = next(str(at) for at in path.relative_to(REPOSITORY).parents if str(at) in TARGETS)
            counted[folder] += path.read_bytes().count(b"\n")
    return counted


def main() -> None:
    """Print the table."""
    row = "{:32} {:>7} {:>7}  {}".format
    print(row("folder", "lines", "target", ""))
    counted = lines()
    for folder, count in counted.items():
        target = TARGETS[folder]
        above = f"{count / target - 1:+.0%}" if count > 1.1 * target else ""
        print(row(folder, count, target, above).rstrip())
    print(row("all", sum(counted.values()), sum(TARGETS.values()), "").rstrip())


if __name__ == "__main__":
    main()
