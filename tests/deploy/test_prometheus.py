"""Prometheus' own checks of its files: that they are valid, and when each alert fires."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.files import DEPLOY, alerts

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool: make test-deploy takes it from Debian's prometheus",
)
FOLDER = DEPLOY / "prometheus"


def promtool(*words: str, cwd: Path = FOLDER) -> str:
    result = subprocess.run(
        ["promtool", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout + result.stderr + f"exit code {result.returncode}"


def test_prometheus_takes_its_files(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    for file in ("prometheus.token", "ca.pem"):
        (tmp_path / file).touch()
    said = promtool("check", "config", "prometheus.yml", cwd=tmp_path)
    assert said.endswith("exit code 0"), said


def test_no_alert_fires_while_all_is_well_and_every_one_when_everything_is_broken() -> None:
    said = promtool("test", "rules", "millrace.test.yml")
    assert said.endswith("exit code 0"), said
    cases = (FOLDER / "millrace.test.yml").read_text()
    assert {alert.name for alert in alerts()} == set(re.findall(r'alertname="(\w+)"', cases))


@pytest.mark.parametrize("name", [alert.name for alert in alerts()])
def test_the_cases_notice_an_alert_that_never_fires(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    rules = tmp_path / "millrace.rules.yml"
    before, alert, after = rules.read_text().partition(f"- alert: {name}\n")
    rules.write_text(
        before + alert + re.sub(r"expr: (?:>-\n\s+)?", r"expr: vector(1) < 0 and on() ", after, count=1)
    )
    assert "FAILED" in promtool("test", "rules", "millrace.test.yml", cwd=tmp_path)
