"""What docs/deployment.md says is installed on which machine, and the settings in those files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "deployment.md").read_text()


@dataclass(frozen=True)
class Installed:
    """A row of the page's table: a file and the unit that reads it."""

    machine: str
    address: str
    source: Path
    target: str
    unit: str


def installed() -> list[Installed]:
    """The table of machines, with the name and address above where a row leaves them out."""
    rows, machine, address = [], "", ""
    for line in PAGE.splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[3].startswith("/etc/millrace/"):
            machine, address = cells[0] or machine, cells[1] or address
            source = DEPLOY / "datacenters" / cells[2]
            rows.append(Installed(machine, address, source, cells[3], cells[4]))
    return rows


def environment(text: str) -> dict[str, str]:
    """The variables of a file for `EnvironmentFile=`."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def exec_start(unit: str) -> list[str]:
    """The words of a unit's ExecStart."""
    text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
    found = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert found is not None, unit
    return found[1].split()
