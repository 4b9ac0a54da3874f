"""The `millrace` command: names every command, imports it when it is called, and prints errors.

Commands of installed plugins join through the entry-point group `millrace.commands`. A MillraceError ends
the process with exit code 1 and its one line; a wrong option with click's exit code 2.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points

import click

from millrace import __version__
from millrace.commands.help_texts import Group, keep_examples_whole
from millrace.errors import MillraceError

COMMANDS = {
    "audit": "millrace_audit.commands:audit",
    "audit-reader": "millrace_audit.commands:audit_reader",
    "auditor": "millrace_audit.commands:auditor",
    "broker": "millrace.commands.broker:broker",
    "consume": "millrace.commands.clients:consume",
    "demo": "millrace_demo.commands.demo:demo",
    "groups": "millrace.commands.groups:groups",
    "log": "millrace.commands.log:log",
    "mirror": "millrace.commands.mirror:mirror",
    "produce": "millrace.commands.clients:produce",
    "publish-access-log": "millrace_demo.commands.access_log:publish_access_log",
    "registry": "millrace_registry.commands:registry",
    "schemas": "millrace_registry.commands:schemas",
    "topics": "millrace.commands.topics:topics",
    "up": "millrace_demo.commands.up:up",
    "zookeeper": "millrace.commands.zookeeper:zookeeper",
}


class LazyGroup(Group):
    """Imports a command's module when the command is looked up, not before: `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, ours and the plugins', sorted."""
        return sorted({*COMMANDS, *entry_points(group="millrace.commands").names})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, or None; click turns None into its own error."""
        if name in COMMANDS:
            module, _, attribute = COMMANDS[name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
        elif plugins := entry_points(group="millrace.commands", name=name):
            command = next(iter(plugins)).load()
        else:
            return None
        assert isinstance(command, click.Command)
        keep_examples_whole(command)
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="millrace")
def cli() -> None:
    """Carry event streams from every datacenter to the warehouse, and prove that nothing was lost.

    Example: millrace demo
    """


def main() -> None:
    """Run the command line; a MillraceError becomes one line on standard error and exit code 1."""
    try:
        cli(prog_name="millrace")
    except MillraceError as error:
        click.echo(f"millrace: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
