"""The `millrace` command: lists every command, imports it when it is called, and prints errors.

Commands of other packages, Millrace's and plugins', join through the entry-point group `millrace.commands`. A
MillraceError ends the process with exit code 1 and its one line. A missing package of an extra, and an
unusable path or disk, end it in the same way. A wrong option ends it with click's exit code 2.
"""

from __future__ import annotations

import ast
import errno
import importlib
import importlib.util
import os
import sys
from pathlib import Path

import click

from millrace import __version__
from millrace.errors import MillraceError
from millrace.help_texts import WHOLE, CommandGroup, keep_examples_whole
from millrace.installation import missing_extra
from millrace.logs import FORMAT, FORMATS, VERBOSE
from millrace.printing import say

COMMANDS = {
    "access": "millrace_commands.access:access",
    "acls": "millrace_commands.acls:acls",
    "broker": "millrace_commands.broker:broker",
    "brokers": "millrace_commands.brokers:brokers",
    "consume": "millrace_commands.clients:consume",
    "groups": "millrace_commands.groups:groups",
    "log": "millrace_commands.log:log",
    "mirror": "millrace_mirror.commands:mirror",
    "produce": "millrace_commands.clients:produce",
    "security": "millrace_commands.security:security",
    "topics": "millrace_commands.topics:topics",
    "users": "millrace_commands.users:users",
    "zookeeper": "millrace_commands.zookeeper:zookeeper",
}


class LazyGroup(CommandGroup):
    """A group that imports a command's module when the command is called: other commands' packages may be
    missing.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_targets())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = COMMANDS.get(name) or _targets().get(name)
        if target is None:
            return None
        module, _, function = target.partition(":")
        command = getattr(importlib.import_module(module), function)
        assert isinstance(command, click.Command)
        keep_examples_whole(command)
        return command

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the first sentence of a command's docstring, read from its source, without importing it."""
        module, _, function = _targets()[name].partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.parse(Path(spec.origin).read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return click.Command(name, help=ast.get_docstring(node)).get_short_help_str(WHOLE)
        return ""


def _targets() -> dict[str, str]:
    """Return the `module:function` of each command name, from the entry points; COMMANDS has precedence."""
    from importlib.metadata import entry_points  # imports email, which no command of the broker's needs

    return {entry.name: entry.value for entry in entry_points(group="millrace.commands")} | COMMANDS


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="millrace")
@click.option(
    "--client",
    metavar="FILE",
    help="Client file for connections to brokers (docs/security.md); MILLRACE_CLIENT can name it, too.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    envvar=FORMAT,
    default="text",
    show_default=True,
    help="Format of a server's log on standard error.",
)
@click.option(
    "--verbose", is_flag=True, help="Show every step of a job, in place of one progress bar on a terminal."
)
def cli(client: str | None, log_format: str, verbose: bool) -> None:
    """Carry event streams from every datacenter to the warehouse, and prove that nothing was lost.

    Example: millrace demo
    """
    if client is not None:
        # Also for the processes that the command starts.
        os.environ["MILLRACE_CLIENT"] = str(Path(client).absolute())
    if verbose:
        os.environ[VERBOSE] = "1"


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _unusable(error: OSError) -> MillraceError | None:
    """Return the error to report for an unusable path or disk.

    Return None for any other error, such as a socket's.
    """
    if error.errno in _FULL:
        place = f"{error.filename}: " if error.filename else ""
        return MillraceError(f"{place}{error.strerror}: make room, then run it again")
    if error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:
            return MillraceError("the current folder was deleted: change to an existing folder")
        return None
    reason = error.strerror
    return MillraceError(f"cannot use {error.filename}: {reason}; give another path, or repair it")


def main() -> None:
    """Run the command line; a MillraceError becomes one line on standard error and exit code 1."""
    try:
        try:
            cli(prog_name="millrace")
        except ModuleNotFoundError as error:
            raise missing_extra(error) from error
        except OSError as error:
            if (refusal := _unusable(error)) is None:
                raise
            raise refusal from error
    except MillraceError as error:
        say(f"millrace: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
