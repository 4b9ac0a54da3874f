"""The `millrace` command: lists every command, imports it when it is called, and prints errors.

Commands of other packages, Millrace's and plugins', join through the entry-point group `millrace.commands`. A
MillraceError ends the process with its exit code and its one line. A missing package of an extra, and an
unusable path or disk, end it in the same way.
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

from millrace.deployment_file import explain_missing, with_addresses
from millrace.errors import Interrupted, MillraceError
from millrace.help_texts import WHOLE, CommandGroup, complete_help
from millrace.installation import missing_extra, version
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
_RUN, _OTHER = "Run", "Other"
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("demo", "init", "up"),
    "Data": (
        *("produce", "consume", "publish-access-log", "load", "reload", "publish", "tables", "mirror-batch"),
        *("promote", "compact", "expire", "erase"),
    ),
    "Proof": ("audit", "verify", "audit-check"),
    "Administer": (
        *("topics", "groups", "brokers", "mirror", "schemas", "log"),
        *("users", "acls", "access", "security"),
    ),
    _RUN: ("broker", "registry", "auditor", "audit-reader", "audit-warehouse", "agent", "zookeeper"),
}
"""Sections of the list of commands, each in the order in which it is shown."""
_WITHOUT_FILE = (*SECTIONS[_RUN], *SECTIONS["Start"])


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
        # A server's addresses are written down where it is started; `init` and `up` make and run the file.
        takes_addresses = name not in _WITHOUT_FILE
        return complete_help(with_addresses(command) if takes_addresses else command)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of all commands by section; commands of plugins come last."""
        names = self.list_commands(ctx)
        known = {name for section in SECTIONS.values() for name in section}
        sections = {title: [name for name in section if name in names] for title, section in SECTIONS.items()}
        return {**sections, _OTHER: [name for name in names if name not in known]}

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


def _print_version(ctx: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        say(f"millrace, version {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
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
    "--verbose", is_flag=True, help="Show every step of a job, in place of one line that a terminal rewrites."
)
def cli(client: str | None, log_format: str, verbose: bool) -> None:
    """Carry event streams from every datacenter to the warehouse, and prove that nothing was lost.

    In a folder with a millrace.toml, the file of `millrace up`, commands take from it every address that you
    leave out, and --bootstrap also accepts the name of a cluster.

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
    """Run the command line; a MillraceError becomes one line on standard error and its exit code."""
    try:
        try:
            _run()
        except ModuleNotFoundError as error:
            raise missing_extra(error) from error
        except OSError as error:
            if (refusal := _unusable(error)) is None:
                raise
            raise refusal from error
    except MillraceError as error:
        say(f"millrace: {error}", err=True)
        sys.exit(error.exit_code)


def _with_advice(error: click.ClickException) -> click.ClickException:
    """Return the error with the place of an option that was given behind the command, or with the file that
    gives a missing address.
    """
    command = (
        error.ctx.command_path.partition(" ")[2] if isinstance(error, click.UsageError) and error.ctx else ""
    )
    if isinstance(error, click.MissingParameter) and command.partition(" ")[0] not in _WITHOUT_FILE:
        return explain_missing(error)
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        option = error.option_name
        if option in {name for parameter in cli.params for name in parameter.opts}:
            place = f"{option} stands before the command: millrace {option} {command} …"
            return click.UsageError(place, error.ctx)
    return error


def _run() -> None:
    """Run the command line. Raise SystemExit unless the exit code is 0."""
    try:
        sys.exit(cli(prog_name="millrace", standalone_mode=False))
    except click.ClickException as error:
        _with_advice(error).show()
        sys.exit(error.exit_code)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt):
            raise Interrupted("interrupted") from None
        raise MillraceError("standard input ended before an answer: run it again on a terminal") from None


if __name__ == "__main__":
    main()
