"""Hours of event time, UTC: `2015-05-17T10` in manifests, hours since 1970 as partitions of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from millrace_audit.reports.counts import FIRST_EVENT_MS

UNFILED = "none"
"""Hour of rows without a time, or with one that no correct clock has shown: kept, counted, never proven."""
HOUR_US = 3_600_000_000
FIRST_HOUR = FIRST_EVENT_MS // 3_600_000
"""The first hour of 2000. No load files rows in an earlier hour; earlier versions did, from 1970 on."""


def hour_of(number: int | None) -> str:
    """`2015-05-17T10` from the number of hours since 1970; UNFILED for None."""
    if number is None:
        return UNFILED
    return datetime.fromtimestamp(number * 3600, UTC).isoformat()[: len("2015-05-17T10")]


def start_of(hour: str) -> datetime:
    """Start of any hour but UNFILED."""
    return datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)


def start_ms(hour: str) -> int:
    """Start of any hour but UNFILED, in ms since the epoch."""
    return int(start_of(hour).timestamp()) * 1000


def number_of(hour: str) -> int:
    """Return the number of any hour but UNFILED, counted from 1970."""
    return int(start_of(hour).timestamp()) // 3600


def partition_of(hour: str) -> int | None:
    """Return the value of the table's partition: the hour's number; None for UNFILED."""
    return None if hour == UNFILED else number_of(hour)


def hours_in(ranges: Iterable[Sequence[str]]) -> set[int]:
    """Return the numbers of the hours in [first, last] ranges."""
    return {number for first, last in ranges for number in range(number_of(first), number_of(last) + 1)}


def ranges_of(numbers: Iterable[int]) -> list[list[str]]:
    """[first, last] hours, ascending, neither overlapping nor adjoining."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [[hour_of(first), hour_of(last)] for first, last in ranges]
