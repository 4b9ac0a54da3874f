"""What is written down before data files are deleted: `expired/<10 digits>.json`, one for each run.

By files, not by loads: an hour that late rows reach keeps the files of a few of them for ever, and would keep
whole loads. Knows no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace_warehouse.history.layout import Folder, expired_path, numbers_in
from millrace_warehouse.history.manifest import FORMAT, PreviousPublication, decode
from millrace_warehouse.storage.verbs import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Data files that no snapshot of the table named, and whose rows no load has to keep."""

    number: int
    created: str
    publication: PreviousPublication
    """The one whose state allowed it."""
    files: Sequence[str]
    """By their paths from the topic's folder, sorted; deleted once readers have had their time."""
    format: int = FORMAT


def expired_entries(storage: Storage, topic: str) -> Iterator[Expired]:
    """Everything that was written down, by number; MillraceError for an entry that was cut or edited."""
    for number in numbers_in(storage, Folder.EXPIRED.of(topic)):
        path = expired_path(topic, number)
        yield decode(Expired, storage.read(path), path)
