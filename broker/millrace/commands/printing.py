"""How commands print: JSON for scripts, tables for people, whole where there is no terminal to fit them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 1000  # columns: wider than any table


def json_option(text: str = "Print JSON, for scripts.") -> Callable[[Any], Any]:
    """The option that every command with a table has; the command's parameter is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def print_records(records: Sequence[Mapping[str, object]], *, as_json: bool, none: str) -> None:
    """Print records of the same keys as a JSON array, or as a table with the keys over it.

    Without records people get the sentence `none`.
    """
    if as_json:
        click.echo(json.dumps(records))
    elif records:
        numbers = [key for key, value in records[0].items() if isinstance(value, int)]
        print_rows(list(records[0]), [list(record.values()) for record in records], right=numbers)
    else:
        click.echo(none)


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()
) -> None:
    """Print rows under the names of their columns; those in `right` are aligned to the right.

    A value that is None leaves its cell empty.
    """
    from rich.console import Console  # both for people alone
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    terminal = Console()
    if terminal.is_terminal and Console(width=_WIDE).measure(table).maximum > terminal.width:
        table.box, table.pad_edge, table.padding = (
            None,
            False,
            (0, 1, 0, 0),
        )  # room for figures, not for lines
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table on standard output: fitted to a terminal, else with every cell whole on its line."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
