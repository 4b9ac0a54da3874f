"""Parsers of option values: sizes, times, ages, loads, names.

Each function takes a value and its option's name, and raises a ConfigError that names both.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from millrace.config import parse_addresses, parse_time
from millrace.errors import ConfigError
from millrace.topics_file import FORMATS, TopicPolicies, read_policies
from millrace_registry.subjects import Subjects

T = TypeVar("T")
_BYTES: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", 1)
    for infix, base in (("", 1000), ("i", 1024))
}
SPARK, LOCAL = "spark", "local"
"""Engines of loads: tasks on executors, and tasks in processes of this machine."""
ENGINES = (SPARK, LOCAL)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_bytes(text: str, option: str) -> int:
    """Parse `500MB` or `2GiB` as bytes."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in _BYTES or not int(match[1]):
        raise ConfigError(f"{option} {text!r} is not a size like 500MB or 2GiB")
    return int(match[1]) * _BYTES[match[2].lower()]


def parse_age(text: str, option: str) -> float:
    """Parse `30d`, `12h`, `90m` or `45s` as seconds."""
    match = re.fullmatch(r"(\d+)([dhms])", text.strip())
    if match is None:
        raise ConfigError(f"{option} {text!r} is not an age like 30d, 12h, 90m or 45s")
    return float(int(match[1]) * _SECONDS[match[2]])


def parse_pause(text: str, option: str) -> float:
    """Parse an age like `5s` that is not zero, as seconds."""
    if not (seconds := parse_age(text, option)):
        raise ConfigError(f"{option} {text!r} leaves no pause: give at least 1s")
    return seconds


def engine(text: str, option: str) -> str:
    """Return the name of an engine. Raise ConfigError for another word."""
    if text not in ENGINES:
        raise ConfigError(f"{option} {text!r} is no engine: write {' or '.join(ENGINES)}")
    return text


def parse_time_ms(text: str, option: str) -> int:
    return int(parse_time(text, option).timestamp() * 1000)


def optional(parse: Callable[[str, str], T]) -> Callable[[str, str], T | None]:
    """Return a parser like `parse` that returns None for an empty value."""
    return lambda text, option: parse(text, option) if text else None


def absolute_file(text: str, _: str) -> str:
    """Return the absolute path of a file, or empty for an empty value."""
    return str(Path(text).absolute()) if text else ""


def parse_loads(text: str, option: str) -> list[int]:
    """Parse `7` or `7-9` as numbers of loads; an empty value names no loads."""
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first)):
        raise ConfigError(f"{option} {text!r} is not a load or a range of them, like 7 or 7-9")
    return list(range(int(first), int(last or first) + 1))


def checked_addresses(text: str, option: str) -> str:
    """Return the text, if it is HOST:PORT[,HOST:PORT...]."""
    parse_addresses(text, option)
    return text


def check_writable(folder: Path, what: str) -> None:
    """Create a folder if it is missing.

    Raise ConfigError, whose text begins with `what`, when the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{what} cannot be created ({error.strerror}): name a folder that can be written"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{what} cannot be written: name another folder, or correct its permissions")


def checked_pattern(text: str, option: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{option} {text!r} is not a regular expression: {error}") from None
    return text


def message_format(text: str, option: str) -> str:
    """Return the name of a format, or empty for an empty value."""
    if text and text not in FORMATS:
        raise ConfigError(f"{option} {text!r} is unknown: give {' or '.join(FORMATS)}")
    return text


def checked_reason(text: str, option: str) -> str:
    """Return the text of a reason, which must not be empty."""
    if not text.strip():
        raise ConfigError(f"{option} is empty: say why these loads are read again")
    return text.strip()


def policies(file: str, _option: str) -> TopicPolicies:
    """Read the file of topics."""
    return read_policies(file)


def checked_subjects(words: Sequence[str], _option: str) -> Sequence[str]:
    """Return the values, if they are a valid naming of subjects."""
    Subjects.parse(words)
    return words


def absolute_warehouse(text: str, _option: str) -> str:
    from millrace_warehouse.storage import open_storage

    return open_storage(text).root.removeprefix("file://")


def checked_name(text: str, option: str) -> str:
    """Return the text, if it is a valid name of an erasure."""
    if text and (not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", text) or text.endswith(".done")):
        raise ConfigError(f"{option} {text!r} is not a name like request-4711: use letters, digits and -_.")
    return text


def each_checked_address(texts: Sequence[str], option: str) -> Sequence[str]:
    """Return the texts, if each is HOST:PORT[,HOST:PORT...]."""
    return [checked_addresses(text, option) for text in texts]


def user_at_machine() -> str:
    """Return the user and the machine of this process, as `user@machine`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def fresh_erasure() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"


def distinct(names: Sequence[str], _option: str) -> list[str]:
    return list(dict.fromkeys(names))


def run_id(text: str = "", _option: str = "") -> str:
    """Return the name of a run, or a new unique name for an empty value."""
    return text or f"manual-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
