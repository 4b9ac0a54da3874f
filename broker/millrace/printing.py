"""Printing by commands: JSON for scripts, lines and tables for people, at full width without a terminal.

No other module prints, because this module escapes the names that clients and servers choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from millrace.escaping import escaped

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WIDE = 1000  # columns: wider than any table


def json_option(text: str = "Print JSON, for scripts.") -> Callable[[Any], Any]:
    """Return the option `--json` of every command with a table; the command's parameter is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def say(*fields: object, err: bool = False) -> None:
    """Print one line for people, or JSON on one line; fields are separated by tabs."""
    click.echo("\t".join(escaped(str(field)) for field in fields), err=err)


def print_json(value: object) -> None:
    """Print JSON for scripts, indented for people."""
    click.echo(json.dumps(value, indent=1))


def text(*parts: object) -> Text:
    """Return the parts as text for rich, without markup. A part may be a pair (value, style)."""
    from rich.text import Text

    pairs = (part if isinstance(part, tuple) else (part, "") for part in parts)
    return Text.assemble(*((escaped(str(value)), style) for value, style in pairs))


def print_records(records: Sequence[Mapping[str, object]], *, as_json: bool, none: str) -> None:
    """Print records of the same keys as a JSON array, or as a table with the keys over it.

    Without records the table is replaced by the sentence `none`.
    """
    if as_json:
        say(json.dumps(records))
    elif records:
        numbers = [key for key, value in records[0].items() if isinstance(value, int)]
        print_rows(list(records[0]), [list(record.values()) for record in records], right=numbers)
    else:
        say(none)


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()
) -> None:
    """Print rows under the names of their columns; the columns in `right` are aligned to the right.

    A value that is None leaves its cell empty.
    """
    from rich.console import Console  # both for people alone
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(text(column), justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*["" if value is None else text(value) for value in row])
    terminal = Console()
    if terminal.is_terminal and Console(width=_WIDE).measure(table).maximum > terminal.width:
        table.box, table.pad_edge, table.padding = (
            None,
            False,
            (0, 1, 0, 0),
        )  # room for figures, not for lines
    show(table)


def show(shown: Table | Text) -> None:
    """Print a table or a styled line: fitted to a terminal, else at full width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(shown)
