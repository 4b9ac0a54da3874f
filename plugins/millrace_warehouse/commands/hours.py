"""The hours that a command line names: single hours, or a range of whole hours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from millrace.config import parse_time
from millrace.errors import ConfigError
from millrace_warehouse.history.hours import UNFILED


def parse_hours(hours: Sequence[str], start: str, end: str) -> list[str]:
    """Return the hours that --hour, or --from and --to, name.

    Raise ConfigError when neither or both are given.
    """
    if (hours and (start or end)) or (not hours and not (start and end)):
        raise ConfigError("give either --hour, as often as needed, or --from and --to")
    if start and end:
        return _hours_between(parse_time(start, "--from"), parse_time(end, "--to"))
    return list(dict.fromkeys(_parse_hour(hour) for hour in hours))


def _hours_between(start: datetime, end: datetime) -> list[str]:
    """Return the hours of [start, end), which must be whole: hours are proved and published whole."""
    if start >= end:
        raise ConfigError(
            f"--from {start.isoformat()} is not before --to {end.isoformat()}: give them in order"
        )
    for name, time in (("--from", start), ("--to", end)):
        _check_whole(name, time)
    count = (end - start) // timedelta(hours=1)
    return [_hour_of(start + timedelta(hours=number)) for number in range(count)]


def _check_whole(option: str, time: datetime) -> None:
    if time.minute or time.second or time.microsecond:
        raise ConfigError(
            f"{option} {time.isoformat()} is not a whole hour in UTC, and hours are proved and published"
            " whole: give the beginning of an hour"
        )


def _parse_hour(text: str) -> str:
    if text == UNFILED:
        return UNFILED
    time = parse_time(text, "--hour")
    if len(text.strip()) <= len("2015-05-17"):
        raise ConfigError(
            f"--hour {text!r} names a day: write an hour like 2015-05-17T10, or use --from and --to"
        )
    _check_whole("--hour", time)
    return _hour_of(time)


def _hour_of(time: datetime) -> str:
    # Not strftime: it writes the year 1 as "1".
    return time.isoformat()[: len("2015-05-17T10")]
