"""Lines of product code by package, beside those of the last release: `make lines`.

Counts every line of every Python file. A package that grew by more than a twentieth needs a reason in
`REASONS`; without one the command ends with 1. At a release `LAST_RELEASE` takes the numbers of the day and
`REASONS` is emptied.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import REPOSITORY

LAST_RELEASE: dict[str, int] = {}
"""Lines of each package."""
REASONS: dict[str, str] = {}
"""What a package grew for since the last release."""
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
