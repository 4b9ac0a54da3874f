"""The wheel in a fresh virtual environment, as somebody without a checkout has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support import REPOSITORY

pytestmark = pytest.mark.long  # a virtual environment and the packages of a plain installation


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def done(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; return its output."""
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY, cwd=folder)
    (built,) = folder.glob("millrace_pipeline-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of a plain installation."""
    folder = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", folder, cwd=folder)
    constraints: Sequence[str | Path] = ("--constraint", REPOSITORY / "constraints.txt")
    done(folder / "bin" / "pip", "install", "--quiet", *constraints, wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_what_up_and_demo_need(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder, pattern in (("dags", "*.py"), ("deploy", "*.toml"), ("schemas", "*.avsc")):
        here = {f"millrace/{folder}/{path.name}" for path in (REPOSITORY / folder).glob(pattern)}
        assert here
        assert here <= names


def test_a_plain_installation_helps_and_names_the_extra_of_what_it_cannot_do(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    assert "publish-access-log" in done(environment / "millrace", "--help", cwd=tmp_path)
    assert done(environment / "millrace", "--version", cwd=tmp_path).startswith("millrace, version ")
    for command in ("demo", "up", "verify ."):
        refused = run(environment / "millrace", *command.split(), cwd=tmp_path)
        assert refused.returncode == 1, command
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert f" @ {wheel.as_uri()}'" in refused.stderr


def test_a_plain_installation_finds_the_schemas_that_come_with_it(environment: Path, tmp_path: Path) -> None:
    code = "from millrace.installation import shipped; print(shipped('schemas'))"
    schemas = done(environment / "python", "-c", code, cwd=tmp_path).strip()
    assert "PageView.avsc: ok" in done(environment / "millrace", "schemas", "check", schemas, cwd=tmp_path)
