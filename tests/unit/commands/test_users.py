"""Messages of `millrace users` before it asks ZooKeeper."""

from __future__ import annotations

from click.testing import CliRunner

from millrace_commands.users import users


def test_without_a_terminal_a_password_file_is_asked_for() -> None:
    result = CliRunner().invoke(users, ["create", "alice", "--cluster", "dc1"], input="secret\nsecret\n")
    assert str(result.exception) == "there is no terminal to ask for the password: name a --password-file"
