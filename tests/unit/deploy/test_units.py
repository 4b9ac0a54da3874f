"""systemd's units: systemd itself finds nothing wrong in them, and they may do little."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from millrace.cli import cli
from tests.unit.deploy.files import DEPLOY, exec_start, installed, state_directories

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's file system as far as systemd-analyze looks: the units, and what they start."""
    units = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(DEPLOY / "systemd", units)
    system = Path("/lib/systemd/system")
    for target in ("basic", "multi-user", "network-online", "network", "shutdown", "sysinit"):
        shutil.copy(system / f"{target}.target", units)
    for program in ("opt/millrace/bin/millrace", "bin/kill"):
        file = tmp_path / program
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    return tmp_path


def analyze(root: Path, *words: str) -> str:
    result = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout + result.stderr + (f"exit code {result.returncode}" if result.returncode else "")


def test_the_units_are_those_of_the_page_the_agents_the_resident_loader_and_several_brokers() -> None:
    named = {row.unit for row in installed()} | {"millrace-agent", "millrace-broker@", "millrace-load"}
    assert {unit.stem for unit in UNITS} == named


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_has_nothing_to_say_about_a_unit(unit: Path, root: Path) -> None:
    path = f"/etc/systemd/system/{unit.name}"
    assert analyze(root, "verify", f"--root={root}", "--man=no", path) == ""
    misspelt = root / path[1:]
    misspelt.write_text(misspelt.read_text().replace("WantedBy=", "WantedFrom="))
    assert "WantedFrom" in analyze(root, "verify", f"--root={root}", "--man=no", path)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_is_exposed_little(unit: Path, root: Path) -> None:
    words = ("security", "--offline=true", f"--root={root}", "--no-pager", f"/etc/systemd/system/{unit.name}")
    exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d)", analyze(root, *words))
    assert exposure is not None
    assert float(exposure[1]) <= 1.5


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_with_the_file_that_it_asserts(unit: Path) -> None:
    text = unit.read_text()
    program, command, *rest = exec_start(unit.stem)
    assert program == "/opt/millrace/bin/millrace"
    assert command == unit.stem.removeprefix("millrace-").removesuffix("@")
    assert cli.get_command(click.Context(cli), command) is not None
    (asserted,) = re.findall(r"^AssertPathExists=(.*)$", text, re.M)
    assert [asserted] in (rest, re.findall(r"^EnvironmentFile=(.*)$", text, re.M))
    assert {row.target for row in installed() if row.unit == unit.stem} <= {asserted}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_may_write_where_its_files_put_data(unit: Path) -> None:
    files = [row.source for row in installed() if row.unit == unit.stem]
    files += [path for path in (DEPLOY / "datacenters").glob("*/agent.env") if unit.stem == "millrace-agent"]
    for file in files:
        for path in re.findall(r"/var/lib/\w+/[\w.-]+", file.read_text()):
            assert path in state_directories(unit.stem)


@pytest.mark.parametrize(
    "unit", [unit for unit in UNITS if unit.stem.rstrip("@") != "millrace-broker"], ids=lambda unit: unit.stem
)
def test_a_unit_of_a_service_bounds_memory_and_open_files(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert [line for line in lines if line.startswith("MemoryMax=")]
    assert "LimitNOFILE=16384" in lines


def test_the_unit_of_several_brokers_differs_from_that_of_one_in_the_names_of_its_file_and_folder() -> None:
    one, several = ((DEPLOY / "systemd" / f"millrace-broker{end}.service").read_text() for end in ("", "@"))
    assert state_directories("millrace-broker@") == ["/var/lib/millrace/broker-%i"]
    assert exec_start("millrace-broker@")[-1] == "/etc/millrace/broker-%i.toml"
    described = several.replace(" %i, one of several on this machine", "")
    assert described.replace("/broker-%i", "/broker") == one
