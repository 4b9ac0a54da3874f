"""Abilities of an installation without extras, and how it reports a missing one."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from millrace import installation
from millrace.errors import MillraceError
from millrace.installation import EXTRAS, how_to_install, missing_extra, require, shipped
from tests.support import REPOSITORY, run_python

# Runs the command line in a Python that finds no package of an extra, as after `pip install WHEEL`.
WITHOUT_EXTRAS = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder

class WithoutExtras(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

HIDDEN = set(json.loads(sys.argv[1]))
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtras
from millrace.cli import main

answers = []
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["millrace", *arguments]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
    answers.append([code or 0, out.getvalue(), error.getvalue()])
print(json.dumps(answers))
"""


def without_extras(folder: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and error of each command, run where no extra is installed."""
    done = run_python(
        "-c", WITHOUT_EXTRAS, json.dumps([*EXTRAS]), json.dumps(commands), timeout_s=60, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout)]


def test_every_command_helps_without_any_extra(tmp_path: Path) -> None:
    [(code, listed, error)] = without_extras(tmp_path, ["--help"])
    assert (code, error) == (0, "")
    commands = re.findall(r"^  ([a-z-]+) ", listed.partition("--help ")[2], re.MULTILINE)
    assert {"broker", "demo", "load", "registry", "verify"} < set(commands)
    answers = without_extras(tmp_path, *([name, "--help"] for name in commands))
    for name, (code, out, error) in zip(commands, answers, strict=True):
        assert code == 0, (name, error)
        assert out.startswith(f"Usage: millrace {name}")


NEEDS_AN_EXTRA = {
    "demo": "airflow,spark",
    "zookeeper --port 0 --data-dir data": "spark",
    "load T --warehouse w --bootstrap h:1 --registry http://h:1": "spark",
    "load T --engine local --warehouse w --bootstrap h:1 --registry http://h:1": "warehouse",
    "publish T --unasked --warehouse w": "warehouse",
    "compact T --warehouse w": "warehouse",
    "tables T --warehouse w": "warehouse",
    "reload T --hour 2015-05-17T10 --reason r --warehouse w --bootstrap h:1 --registry http://h:1": "spark",
    "mirror-batch T --origin dc1 --origin-bootstrap h:1 --bootstrap h:1": "spark",
    "expire T --warehouse w --older-than 30d": "warehouse",
    "promote T --warehouse w --registry http://h:1 --reason r": "warehouse",
    "verify --warehouse w": "warehouse",
    "registry --listen 127.0.0.1:0 --database-url postgresql+psycopg://a@b/c": "postgres",
}


def test_a_command_that_cannot_run_without_an_extra_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    answers = without_extras(tmp_path, *(line.split() for line in NEEDS_AN_EXTRA))
    for (line, extra), (code, _, error) in zip(NEEDS_AN_EXTRA.items(), answers, strict=True):
        assert_names_an_extra(line, code, error)
        assert f"[{extra}]" in error


def assert_names_an_extra(command: str, code: int, error: str) -> None:
    assert code == 1, (command, error)
    assert error.count("\n") == 1, (command, error)
    assert "pip install 'millrace-pipeline[" in error, (command, error)


def test_an_unknown_command_is_told_the_one_that_was_meant(tmp_path: Path) -> None:
    [(code, _, error)] = without_extras(tmp_path, ["laod"])
    assert code == 2
    assert error.endswith("No such command 'laod'. Did you mean 'load'?\n")


class Installed:
    """A distribution with that direct_url.json."""

    def __init__(self, origin: object) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


GIT = {"url": "https://example.org/m.git", "vcs_info": {"vcs": "git", "commit_id": "1f2e"}}


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (None, ""),
        ({"url": "file:///d/m.whl", "archive_info": {}}, " @ file:///d/m.whl"),
        ({"url": "file:///m", "dir_info": {"editable": True}}, " @ file:///m"),
        (GIT, " @ git+https://example.org/m.git@1f2e"),
    ],
)
def test_an_extra_comes_from_where_this_installation_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: object, source: str
) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: Installed(origin))
    assert how_to_install("airflow", "spark") == f"pip install 'millrace-pipeline[airflow,spark]{source}'"


def test_what_is_not_installed_at_all_is_named_by_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert how_to_install("spark") == "pip install 'millrace-pipeline[spark]'"


def test_a_module_that_no_extra_brings_is_an_error_of_the_program() -> None:
    error = ModuleNotFoundError("No module named 'millrace.nothing'", name="millrace.nothing")
    with pytest.raises(ModuleNotFoundError) as raised:
        missing_extra(error)
    assert raised.value is error


def test_all_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    require(*EXTRAS.keys() - {"psycopg"})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MillraceError, match=r"^airflow, numpy are not installed: .*\[airflow,warehouse\]"):
        require("airflow", "numpy")


@pytest.mark.parametrize("name", ["dags", "deploy/local.toml", "schemas"])
def test_a_checkout_finds_what_ships_in_its_own_folders(name: str) -> None:
    assert shipped(name) == REPOSITORY / name
    assert shipped(name).exists()
