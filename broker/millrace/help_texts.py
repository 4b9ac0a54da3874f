"""Format of every command's help: whole sentences in lists, and examples that can be copied into a shell.

click cuts a command's line in a list short and wraps an example like prose; a wrapped example, pasted, runs
only its first line. It depends on no command.
"""

from __future__ import annotations

import difflib
import inspect
import re

import click

WHOLE = 10_000  # characters: longer than any sentence


class CommandGroup(click.Group):
    """A group that lists commands with the whole first sentence of each, and suggests a name for a mistyped
    one.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

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


def keep_examples_whole(command: click.Command) -> None:
    """Keep click from wrapping paragraphs that begin with `Example:`, also in subcommands. Idempotent."""
    if command.help:
        command.help = _with_whole_examples(command.help)
    if command.epilog:
        command.epilog = _with_whole_examples(command.epilog)
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            keep_examples_whole(subcommand)


def _with_whole_examples(text: str) -> str:
    paragraphs = re.split(r"\n{2,}", inspect.cleandoc(text))
    for index, paragraph in enumerate(paragraphs):
        if paragraph.startswith("Example:"):
            # A line of only \b tells click to leave the paragraph as it is.
            paragraphs[index] = "\b\n" + re.sub(r"\s*\n\s*", " ", paragraph)
    return "\n\n".join(paragraphs)
