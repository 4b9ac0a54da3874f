"""The role: ansible-lint takes it, its inventory is the table of the page, a second run changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import REPOSITORY
from tests.unit.deploy.files import DEPLOY, installed, make_secrets

FOLDER = DEPLOY / "ansible"
pytestmark = pytest.mark.skipif(
    shutil.which("ansible-playbook") is None, reason="needs Ansible: make test-deploy installs it from PyPI"
)
MACHINES = ("dc1-1", "offline-4")


def hosts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "inventory.yml").read_text())["millrace"]["children"]
    return {
        name: {**group["vars"], **variables}
        for group in groups.values()
        for name, variables in group["hosts"].items()
    }


def test_ansible_lint_finds_nothing() -> None:
    done = subprocess.run(
        ["ansible-lint", "--offline", "--strict", "--nocolor", "."],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_inventory_is_the_table_of_the_page() -> None:
    wanted = {(row.machine, row.address, row.source) for row in installed()}
    got = set()
    for name, variables in hosts().items():
        folder, address = DEPLOY / "datacenters" / variables["millrace_datacenter"], variables["ansible_host"]
        if broker := variables.get("millrace_broker"):
            got.add((name, address, folder / f"broker-{broker}.toml"))
        for service in variables.get("millrace_services", []):
            got.add((name, address, folder / f"{service}.env"))
    assert got == wanted


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(REPOSITORY))
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=300)
    (built,) = tmp_path.glob("*.whl")
    return built


def test_a_machine_gets_its_files_and_a_second_run_changes_nothing(wheel: Path, tmp_path: Path) -> None:
    secrets = make_secrets(tmp_path / "secrets")
    settings = {
        "ansible_connection": "local",
        "ansible_become": "false",
        "ansible_python_interpreter": str(Path(shutil.which("ansible-playbook") or "").parent / "python"),
        "millrace_package": str(wheel),
        "millrace_root": f"{tmp_path}/{{{{ inventory_hostname }}}}",
        "millrace_secrets": str(secrets),
    }
    words = [word for name, value in settings.items() for word in ("--extra-vars", f"{name}={value!r}")]

    def play() -> str:
        done = subprocess.run(
            [
                "ansible-playbook",
                "--inventory",
                "inventory.yml",
                "--limit",
                ",".join(MACHINES),
                *words,
                "site.yml",
            ],
            cwd=FOLDER,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,  # two virtual environments are made, on a machine that may be busy
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert re.search(r"changed=[1-9]", play())
    for row in installed():
        if row.machine in MACHINES:
            root = tmp_path / row.machine
            assert (root / row.target.lstrip("/")).read_bytes() == row.source.read_bytes()
            unit = root / f"etc/systemd/system/{row.unit}.service"
            assert unit.read_bytes() == (DEPLOY / "systemd" / unit.name).read_bytes()
            assert (root / "etc/systemd/system/millrace-.service.d/10-all.conf").exists()
            run = [str(root / "opt/millrace/bin/millrace"), "--version"]
            assert subprocess.run(run, check=True, capture_output=True, timeout=60).stdout
            for file in (secrets / row.machine).iterdir():
                copy = root / "etc/millrace/security" / file.name
                assert copy.read_bytes() == file.read_bytes()
                assert copy.stat().st_mode & 0o777 == 0o600
    again = play()
    assert again.count("changed=0") == len(MACHINES), again
