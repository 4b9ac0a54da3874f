"""Packages that `make dist` builds, installed in a fresh virtual environment, without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from millrace import __version__
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
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built files; the wheel with compiled functions is built from the sdist."""
    folder = tmp_path_factory.mktemp("built") / "dist"
    done("make", "dist", f"DIST={folder}", f"PYTHON={sys.executable}", cwd=REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("millrace_pipeline-*-abi3-*.whl")
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


def test_one_wheel_has_the_compiled_functions_and_one_runs_everywhere(dist: Path, wheel: Path) -> None:
    (pure,) = dist.glob("millrace_pipeline-*-py3-none-any.whl")
    with ZipFile(wheel) as compiled, ZipFile(pure) as python:
        assert {*compiled.namelist()} - {*python.namelist()} == {"millrace/records/_runs.abi3.so"}
    (_,) = dist.glob("millrace_pipeline-*.tar.gz")


def test_a_plain_installation_helps_and_names_the_extra_of_what_it_cannot_do(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    assert "publish-access-log" in done(environment / "millrace", "--help", cwd=tmp_path)
    commit = done("git", "rev-parse", "--short=8", "HEAD", cwd=REPOSITORY).strip()
    version = done(environment / "millrace", "--version", cwd=tmp_path)
    assert version == f"millrace, version {__version__} ({commit})\n"
    for command in ("demo", "up", "verify --warehouse ."):
        refused = run(environment / "millrace", *command.split(), cwd=tmp_path)
        assert refused.returncode == 1, command
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert f" @ {wheel.as_uri()}'" in refused.stderr


def test_a_plain_installation_finds_the_schemas_that_come_with_it(environment: Path, tmp_path: Path) -> None:
    code = "from millrace.installation import shipped; print(shipped('schemas'))"
    schemas = done(environment / "python", "-c", code, cwd=tmp_path).strip()
    assert "PageView.avsc: ok" in done(environment / "millrace", "schemas", "check", schemas, cwd=tmp_path)


def test_the_demo_runs_from_the_wheel_in_an_empty_folder(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    extras = f"millrace-pipeline[airflow,spark] @ {wheel.as_uri()}"
    constraints = ("--constraint", REPOSITORY / "constraints.txt")
    done(environment / "pip", "install", "--quiet", *constraints, extras, cwd=tmp_path)
    folder, home = tmp_path / "empty", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    # Nothing of this checkout: no variable, and the environment's commands are not on the path.
    only = {"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"}
    only |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    command = (environment / "millrace", "demo", "--events", "20000", "--hours", "2")
    ended = subprocess.run(
        command, cwd=folder, env=only, capture_output=True, text=True, check=False, timeout=1800
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("DEMO OK: published=20000 mirrored=20000 loaded=20000 ")
    assert [*folder.iterdir()] == []
