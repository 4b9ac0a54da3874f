"""A path, a disk or a word that cannot be used ends a command with one line and exit code 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOT_MADE = "/proc/millrace"
"""A path that nobody can make, root neither."""


def run(folder: Path, *arguments: str, output: str | None = None) -> tuple[int, str]:
    """The exit code, and all that the command says; its standard output may go to a file."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    with open(output, "w") if output else open(folder / "output", "w+") as out:
        done = subprocess.run(command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["zookeeper", "identities", NOT_MADE],
        ["zookeeper", "--port", "0", "--data-dir", NOT_MADE],
        ["access", "add", NOT_MADE, "web", "read"],
    ],
)
def test_a_path_that_cannot_be_used_is_named_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    assert run(tmp_path, *arguments) == (
        1,
        f"millrace: cannot use {NOT_MADE}: No such file or directory; give another path, or repair it\n",
    )


def test_a_folder_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    load = "load T --bootstrap 127.0.0.1:1 --registry http://127.0.0.1:1 --warehouse warehouse"
    command = f'rmdir "$PWD" && exec "{sys.executable}" -m millrace.cli {load}'
    done = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True, timeout=60)
    said = "millrace: the current folder was deleted: change to an existing folder\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("arguments", [["--version"], ["topics", "--help"], ["init", "deployment"]])
def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    assert run(tmp_path, *arguments, output="/dev/full") == (
        1,
        "millrace: No space left on device: make room, then run it again\n",
    )


def test_no_token_is_made_for_a_role_that_no_service_knows(tmp_path: Path) -> None:
    assert run(tmp_path, "access", "add", "access.toml", "web", "read", "raed:web-*") == (
        1,
        "millrace: role 'raed:web-*' is none of read, register, admin, accept, write, metrics: no service"
        " accepts it\n",
    )
    assert not (tmp_path / "access.toml").exists()


def test_a_name_that_no_cluster_has_is_refused_before_zookeeper_is_asked(tmp_path: Path) -> None:
    for arguments in (["users", "list", "--cluster", ".."], ["users", "list", "--cluster", "audit"]):
        code, said = run(tmp_path, *arguments, "--zookeeper", "127.0.0.1:1")
        assert (code, said.count("\n")) == (1, 1)
        assert f"cluster {arguments[-1]!r} is no name of a cluster" in said


def test_a_folder_without_users_is_refused_before_zookeeper_is_asked(tmp_path: Path) -> None:
    arguments = ["security", "users", "none", "--cluster", "dc1", "--zookeeper", "127.0.0.1:1"]
    assert run(tmp_path, *arguments) == (
        1,
        "millrace: no user has a password in none: run `millrace security init none` first\n",
    )
