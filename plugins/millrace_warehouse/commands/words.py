"""What the words of a command line mean: sizes, times, ages, hours, names.

Each function takes a word and the option it was given with, and fails with a ConfigError that names both.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from millrace.config import parse_addresses, parse_time
from millrace.errors import ConfigError
from millrace_warehouse.history.manifest import UNFILED

_BYTES: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", 1)
    for infix, base in (("", 1000), ("i", 1024))
}
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_bytes(text: str, option: str) -> int:
    """`500MB` or `2GiB` as bytes."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in _BYTES or not int(match[1]):
        raise ConfigError(f"{option} {text!r} is no size like 500MB or 2GiB")
    return int(match[1]) * _BYTES[match[2].lower()]


def optional_bytes(text: str, option: str) -> int | None:
    """As `parse_bytes`; None for an empty word."""
    return parse_bytes(text, option) if text else None


def parse_age(text: str, option: str) -> float:
    """`30d`, `12h`, `90m` or `45s` in seconds."""
    match = re.fullmatch(r"(\d+)([dhms])", text.strip())
    if match is None:
        raise ConfigError(f"{option} {text!r} is not an age like 30d, 12h, 90m or 45s")
    return float(int(match[1]) * _SECONDS[match[2]])


def optional_age(text: str, option: str) -> float | None:
    """As `parse_age`; None for an empty word."""
    return parse_age(text, option) if text else None


def optional_time_ms(text: str, option: str) -> int | None:
    """A time in ms since the epoch; None for an empty word."""
    return int(parse_time(text, option).timestamp() * 1000) if text else None


def parse_hours(hours: Sequence[str], start: str, end: str) -> list[str]:
    """The hours that --hour, or --from and --to, name; ConfigError when it is neither or both."""
    if (hours and (start or end)) or (not hours and not (start and end)):
        raise ConfigError("give either --hour, as often as needed, or --from and --to")
    if start and end:
        return _hours_between(parse_time(start, "--from"), parse_time(end, "--to"))
    return list(dict.fromkeys(_parse_hour(hour) for hour in hours))


def _hours_between(start: datetime, end: datetime) -> list[str]:
    """The whole hours of [start, end): what is proved is what is published, and half an hour is neither."""
    if start >= end:
        raise ConfigError(
            f"--from {start.isoformat()} is not before --to {end.isoformat()}: give them in order"
        )
    for name, time in (("--from", start), ("--to", end)):
        if time.minute or time.second or time.microsecond:
            raise ConfigError(
                f"{name} {time.isoformat()} is not a whole hour in UTC, and hours are proved and published"
                " whole: give the beginning of an hour"
            )
    count = (end - start) // timedelta(hours=1)
    return [_hour_of(start + timedelta(hours=number)) for number in range(count)]


def _parse_hour(text: str) -> str:
    if text == UNFILED:
        return UNFILED
    time = parse_time(text, "--hour")
    if len(text.strip()) <= len("2015-05-17"):
        raise ConfigError(
            f"--hour {text!r} names a day: write an hour like 2015-05-17T10, or use --from and --to"
        )
    return _hour_of(time)


def _hour_of(time: datetime) -> str:
    # Not strftime: it writes the year 1 as "1".
    return time.isoformat()[: len("2015-05-17T10")]


def parse_loads(text: str, option: str) -> list[int]:
    """`7` or `7-9` as numbers of loads; none for an empty word."""
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first)):
        raise ConfigError(f"{option} {text!r} is not a load or a range of them, like 7 or 7-9")
    return list(range(int(first), int(last or first) + 1))


def checked_addresses(text: str, option: str) -> str:
    """The text, if it is HOST:PORT[,HOST:PORT...]."""
    parse_addresses(text, option)
    return text


def checked_pattern(text: str, option: str) -> str:
    """The text, if it is a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{option} {text!r} is no regular expression: {error}") from None
    return text


def checked_limit(text: str, _option: str) -> str:
    """The text of --max-rejected, if it is a number, a share or empty."""
    if text:
        from millrace_warehouse.load.rejections import RejectedLimit

        RejectedLimit.parse(text)
    return text


def checked_reason(text: str, option: str) -> str:
    """The text of a reason, which says something."""
    if not text.strip():
        raise ConfigError(f"{option} is empty: say why these loads are read again")
    return text.strip()


def absolute_warehouse(text: str, _option: str) -> str:
    """The warehouse as every process finds it."""
    from millrace_warehouse.storage import open_storage

    return open_storage(text).root.removeprefix("file://")


def distinct(names: Sequence[str], _option: str) -> list[str]:
    """The names in their order, without repetitions."""
    return list(dict.fromkeys(names))


def run_id(text: str = "", _option: str = "") -> str:
    """The name of a run; for an empty word one that nobody has used."""
    return text or f"manual-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
