"""Format of every command's help: whole sentences in lists, examples that can be copied, and exit codes.

click cuts a command's line in a list short and wraps an example like prose; a wrapped example, pasted, runs
only its first line. It depends on no command.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import re

import click

EXIT_CODES = "Exit code: 0 done, 1 failed or not proven, 2 wrong usage, 130 interrupted."
WHOLE = 10_000  # characters: longer than any sentence


class CommandGroup(click.Group):
    """A group that lists commands with the whole first sentence of each, and suggests a name for a mistyped
    one.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections(ctx).items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, self.summary(ctx, name)) for name in names])

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of the commands by the title of their section."""
        return {"Commands": self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does; suggest a similar name for an unknown one."""
        if self.get_command(ctx, args[0]) is None:
            for close in difflib.get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close!r}?")
        return super().resolve_command(ctx, args)

    def summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(WHOLE)


def complete_help(command: click.Command) -> click.Command:
    """Return the command, and those below it, with whole examples and the exit codes in their help."""
    completed = copy.copy(command)
    completed.help = _with_whole_examples(command.help or "")
    if isinstance(completed, click.Group):
        completed.commands = {name: complete_help(below) for name, below in completed.commands.items()}
    else:
        completed.params = [_with_metavar(parameter) for parameter in command.params]
        completed.epilog = EXIT_CODES
    return completed


def _with_metavar(parameter: click.Parameter) -> click.Parameter:
    """Return an option with a metavar where click would print the name of its type."""
    if not isinstance(parameter, click.Option) or parameter.metavar is not None:
        return parameter
    named = copy.copy(parameter)
    if isinstance(parameter.type, click.types.IntParamType):
        named.metavar = "N"
    elif isinstance(parameter.type, click.Path):
        named.metavar = "FILE" if parameter.type.file_okay else "DIR"
    return named


def _with_whole_examples(text: str) -> str:
    paragraphs = re.split(r"\n{2,}", inspect.cleandoc(text))
    for index, paragraph in enumerate(paragraphs):
        if paragraph.startswith("Example:"):
            # A line of only \b tells click to leave the paragraph as it is.
            paragraphs[index] = "\b\n" + re.sub(r"\s*\n\s*", " ", paragraph)
    return "\n\n".join(paragraphs)
