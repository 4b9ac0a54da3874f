"""Prints tables so that nothing in them is lost where there is no terminal to fit them to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table

_WIDE = 1000  # columns: wider than any table


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()
) -> None:
    """Print rows under the names of their columns; those in `right` are aligned to the right.

    A value that is None leaves its cell empty.
    """
    table = Table()
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table on standard output: fitted to a terminal, else with every cell whole on its line."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
