"""Every command of the command line explains itself: an example that can be copied, each option in words."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from millrace.cli import cli


def paths(command: click.Command, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield above
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from paths(found, (*above, name))


@pytest.mark.parametrize("path", list(paths(cli)), ids=" ".join)
def test_help_has_an_example_on_one_line_and_words_for_every_option(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"]).stdout
    (example,) = [line for line in shown.splitlines() if line.strip().startswith("Example: ")]
    assert "millrace" in example
    assert shown.endswith(f"{example}\n") or f"{example}\n\n" in shown, "the example is wrapped"
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_list_of_commands_cuts_no_sentence_short() -> None:
    for path in ([], ["topics"], ["mirror"], ["schemas"], ["log"]):
        commands = CliRunner().invoke(cli, [*path, "--help"]).stdout.partition("--help ")[2]
        assert commands.count("\n") > 3
        assert "..." not in commands


@pytest.mark.parametrize(
    ("words", "meant"), [(["tpics"], "topics"), (["topics", "lst"], "list"), (["init", "evnt"], "event")]
)
def test_a_mistyped_command_fails_with_the_one_that_was_meant(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"Did you mean {meant!r}?" in result.output
