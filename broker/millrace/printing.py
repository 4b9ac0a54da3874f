"""Printing by commands: a line of JSON for scripts, lines and tables for people, at full width without a
terminal.

No other module prints, because this module escapes the names that clients and servers choose.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from millrace.escaping import escaped

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WIDE = 1000  # columns: wider than any table
_NUMBER = re.compile(r"(~?[0-9][0-9,.]*( s)?|-)?")
"""A cell that is aligned to the right in a column of such cells."""


def json_option(text: str = "Print JSON, for scripts.") -> Callable[[Any], Any]:
    """Return the option `--json` of every command with a table; the command's parameter is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def say(*fields: object, err: bool = False) -> None:
    """Print one line for people, or JSON on one line; fields are separated by tabs."""
    click.echo("\t".join(escaped(str(field)) for field in fields), err=err)


def print_json(value: object) -> None:
    """Print a result as JSON on one line, for scripts. Dataclasses are objects of their fields."""
    click.echo(json.dumps(value, default=_as_json))


def _as_json(value: Any) -> object:
    return dataclasses.asdict(value)


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
        print_json(records)
    elif records:
        print_table(records, *records[0])
    else:
        say(none)


def print_table(records: Iterable[Mapping[str, Any]], *columns: str | tuple[str, str]) -> None:
    """Print records as a table, if there are any.

    A column is a key, which is also its heading, or a pair of a heading and a key.
    """
    pairs = [(column.replace("_", " "), column) if isinstance(column, str) else column for column in columns]
    print_rows([head for head, _ in pairs], [[record[key] for _, key in pairs] for record in records])


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows, if there are any, under the names of their columns."""
    if rows:
        show(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> Table:
    """Return a table without lines, which leaves room for figures in a terminal of 80 columns.

    Numbers are aligned to the right; whole numbers have commas. A value that is None leaves its cell empty,
    and a pair (value, style) is styled. A row may end before the last column.
    """
    from rich.table import Table  # for people alone

    heading = text(title) if title else None
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[_cell(value) for value in row] for row in rows]
    for number, column in enumerate(columns):
        in_column = [row[number].plain for row in cells if number < len(row)]
        is_number = all(map(_NUMBER.fullmatch, in_column)) and any(in_column)
        table.add_column(text(column), justify="right" if is_number else "left")
    for row in cells:
        table.add_row(*row)
    return table


def _cell(value: object) -> Text:
    if isinstance(value, int) and not isinstance(value, bool):
        return text(f"{value:,}")
    return text("" if value is None else value)


def show(shown: Table | Text) -> None:
    """Print a table or a styled line: fitted to a terminal, else at full width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(shown)
