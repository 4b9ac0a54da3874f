"""Which loads have rows of which hour, kept in a file so that nobody reads every manifest to find out.

    <topic>/_hours/<10 digits>-<8 hex>.json     hour -> loads, of the loads up to that one

Made from manifests, and only a shortcut. A file counts while the load it ends with is the one it was made
from: each manifest holds the hash of the one before, so all earlier loads are the same, too. Without a file
that counts the manifests are read. Knows first editions only: later ones are few, and read one by one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.editions import read_edition
from millrace_spark.warehouse.layout import HOURS
from millrace_spark.warehouse.manifest import FORMAT, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class HourIndex:
    """Which of the loads 1 to `through` have rows of an hour."""

    through: int
    load_sha256: str
    """Of that load's manifest."""
    hours: Mapping[str, Sequence[Sequence[int]]]
    """Hour -> [first, last] numbers of loads, ascending."""
    format: int = FORMAT
    sha256: str = ""
    """Of this file without this key."""

    def loads(self, hour: str) -> Iterator[int]:
        """The loads that have rows of an hour, ascending."""
        for first, last in self.hours.get(hour, ()):
            yield from range(first, last + 1)


def hour_index(fs: Filesystem, topic: str, newest: int) -> HourIndex:
    """The index of the loads up to the newest one; what was missing of it is read and written down."""
    cached = _read(fs, topic, newest) or HourIndex(through=0, load_sha256="", hours={})
    if cached.through == newest:
        return cached
    hours = {hour: [list(loads) for loads in ranges] for hour, ranges in cached.hours.items()}
    digest = ""
    for load in range(cached.through + 1, newest + 1):
        manifest = read_edition(fs, topic, load, 1)
        digest = manifest.sha256
        for hour in manifest.rows_by_hour():
            loads = hours.setdefault(hour, [])
            if loads and loads[-1][1] == load - 1:
                loads[-1][1] = load
            else:
                loads.append([load, load])
    index = HourIndex(through=newest, load_sha256=digest, hours=hours)
    _write(fs, topic, dataclasses.replace(index, sha256=_digest(index)))
    return index


def _read(fs: Filesystem, topic: str, newest: int) -> HourIndex | None:
    """The index that reaches furthest and counts, None without one."""
    for name in reversed(fs.names(f"{topic}/{HOURS}")):
        match = re.fullmatch(r"(\d{10})-[0-9a-f]{8}\.json", name)
        if match is None or not 1 <= int(match[1]) <= newest:
            continue
        try:
            index = decode(HourIndex, fs.read(f"{topic}/{HOURS}/{name}"), name)
        except (FileNotFoundError, MillraceError):
            continue  # another run replaced it, or somebody edited it
        load = read_edition(fs, topic, int(match[1]), 1)
        is_its = (index.through, index.load_sha256) == (load.load, load.sha256)
        if is_its and index.sha256 == _digest(index):
            return index
    return None


def _write(fs: Filesystem, topic: str, index: HourIndex) -> None:
    mine = f"{index.through:010d}-{index.load_sha256[:8]}.json"
    others = [name for name in fs.names(f"{topic}/{HOURS}") if name != mine and not name.startswith(".")]
    fs.delete(f"{topic}/{HOURS}/{mine}")  # one that does not count, or the same
    fs.create(f"{topic}/{HOURS}/{mine}", encode(index))
    for name in others:
        fs.delete(f"{topic}/{HOURS}/{name}")


def _digest(index: HourIndex) -> str:
    return hashlib.sha256(encode(dataclasses.replace(index, sha256=""))).hexdigest()
