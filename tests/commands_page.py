"""Tables of all commands for docs/commands.md; `python -m tests.commands_page` writes them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from millrace.cli import SECTIONS, cli
from millrace.help_texts import WHOLE
from tests.json_answers import ANSWERS, in_words
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "commands.md"
BEGIN = "<!-- begin: commands, made by python -m tests.commands_page -->\n"


def leaves(command: click.Command = cli, above: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield the words and the command of each command that does something."""
    if not isinstance(command, click.Group):
        yield " ".join(above), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*above, name))


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def spelling(parameter: click.Parameter, context: click.Context) -> str:
    """Spell a parameter as a user types it; optional options are in brackets."""
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(context)
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.make_metavar(context)}"
    more = "..." if parameter.multiple else ""
    text = f"{parameter.opts[0]}{value}{more}"
    return text if parameter.required else f"[{text}]"


def tables() -> str:
    """Return a table for each section of the list of commands."""
    by_name = dict(leaves())
    sections = []
    for title, names in SECTIONS.items():
        lines = [f"## {title}\n", "| command | what it does |", "|---|---|"]
        for name in names:
            for words in (words for words in by_name if words.split()[0] == name):
                command = by_name[words]
                context = click.Context(command)
                spelt = " ".join(spelling(parameter, context) for parameter in command.params)
                cell = f"`millrace {words} {spelt}`".replace("|", "\\|").replace(" `", "`")
                lines.append(f"| {cell} | {command.get_short_help_str(WHOLE)} |")
        sections.append("\n".join(lines))
    sections.append(answers())
    return BEGIN + "\n" + "\n\n".join(sections) + "\n"


def answers() -> str:
    """Return the table of the keys of all JSON answers."""
    lines = ["## Keys of JSON answers\n", "| command | prints with `--json` |", "|---|---|"]
    order = [name for names in SECTIONS.values() for name in names]
    for words in sorted(ANSWERS, key=lambda words: order.index(words.split()[0])):
        cells = " or ".join(f"`{in_words(shape)}`" for shape in ANSWERS[words])
        lines.append(f"| `{words}` | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    head, _, _ = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + tables())
