"""Files that docs/deployment.md installs and their folders, their settings, and monitoring's queries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

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


@dataclass(frozen=True)
class Alert:
    """A rule of Prometheus."""

    name: str
    expr: str
    severity: str
    runbook: str


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


def make_secrets(folder: Path, *services: str) -> Path:
    """Run secrets.sh; the folder, in which each machine has one."""
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [str(DEPLOY / "datacenters" / "secrets.sh"), str(folder), *services]
    subprocess.run(words, env=variables, check=True, capture_output=True, timeout=300)
    return folder


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


def state_directories(unit: str) -> list[str]:
    """The folders that systemd makes for a unit."""
    text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
    return [f"/var/lib/{name}" for name in re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)]


def alerts() -> list[Alert]:
    """Every rule of Prometheus' file."""
    text = (DEPLOY / "prometheus" / "millrace.rules.yml").read_text()
    groups = yaml.safe_load(text)["groups"]
    return [
        Alert(rule["alert"], rule["expr"], rule["labels"]["severity"], rule["annotations"]["runbook"])
        for group in groups
        for rule in group["rules"]
    ]


def dashboards() -> dict[str, Any]:
    """File name -> what Grafana imports."""
    return {path.name: json.loads(path.read_text()) for path in (DEPLOY / "grafana").glob("*.json")}


def expressions() -> list[str]:
    """Every expression of alerts and dashboards."""
    panels = [panel for dashboard in dashboards().values() for panel in dashboard["panels"]]
    return [alert.expr for alert in alerts()] + [
        target["expr"] for panel in panels for target in panel["targets"]
    ]


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression reads, but for `up`, which is Prometheus' own."""
    return set(re.findall(r"\b(?:millrace|process)_\w+", expression))
