"""A path, a disk or a word that cannot be used ends a command with one line and its exit code."""

from __future__ import annotations

import signal
import socket
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
        2,
        "millrace: role 'raed:web-*' is none of read, register, admin, accept, write, metrics: no service"
        " accepts it\n",
    )
    assert not (tmp_path / "access.toml").exists()


@pytest.mark.parametrize("option", ["--verbose", "--client"])
def test_an_option_of_every_command_behind_the_command_is_shown_where_it_stands(
    tmp_path: Path, option: str
) -> None:
    code, shown = run(tmp_path, "load", "PageView", option)
    assert code == 2
    assert f"Error: {option} stands before the command: millrace {option} load …\n" in shown
    code, shown = run(tmp_path, "topics", "create", "PageView", "--quiet")
    assert (code, shown.splitlines()[-1]) == (2, "Error: No such option '--quiet'.")


def test_a_name_that_no_cluster_has_is_refused_before_zookeeper_is_asked(tmp_path: Path) -> None:
    for arguments in (["users", "list", "--cluster", ".."], ["users", "list", "--cluster", "audit"]):
        code, said = run(tmp_path, *arguments, "--zookeeper", "127.0.0.1:1")
        assert (code, said.count("\n")) == (2, 1)
        assert f"cluster {arguments[-1]!r} is no name of a cluster" in said


def test_a_folder_without_users_is_refused_before_zookeeper_is_asked(tmp_path: Path) -> None:
    arguments = ["security", "users", "none", "--cluster", "dc1", "--zookeeper", "127.0.0.1:1"]
    assert run(tmp_path, *arguments) == (
        2,
        "millrace: no user has a password in none: run `millrace security init none` first\n",
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("topics list", "interrupted"),
        (
            "load T --registry http://127.0.0.1:1 --warehouse warehouse",
            "interrupted: each topic was loaded whole or not at all; run it again to load the rest",
        ),
    ],
)
def test_ctrl_c_is_one_line_with_what_was_done(tmp_path: Path, command: str, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = [*command.split(), "--bootstrap", f"127.0.0.1:{silent.getsockname()[1]}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.cli", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        connection, _ = silent.accept()  # the command waits for an answer
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        connection.close()
    assert (process.returncode, said.strip()) == (130, f"millrace: {says}")
