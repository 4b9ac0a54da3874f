"""Prints a table so that nothing in it is lost where there is no terminal to fit it to."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_WIDE = 1000  # columns: wider than any table


def print_table(table: Table) -> None:
    """Print a table on standard output: fitted to a terminal, else with every cell whole on its line."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
