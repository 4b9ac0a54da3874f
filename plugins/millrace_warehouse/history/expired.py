"""Entries written before data files are deleted: `expired/<10 digits>.json`, one for each run.

An entry lists files, not loads. An hour with late rows keeps a few files of many loads for ever, and an entry
by load would keep these loads whole. If a snapshot names a listed file again, a later entry states that. The
grace time for readers then starts again when no snapshot names the file any more. Depends on no table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace_warehouse.history.layout import Folder, Topic, expired_path, numbers_in
from millrace_warehouse.history.manifest import FORMAT, PreviousPublication, decode, encode
from millrace_warehouse.races import Conflict, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Data files that no snapshot of the table names and whose rows the loads need not keep."""

    number: int
    created: str
    publication: PreviousPublication
    """The publication whose state allowed the deletion."""
    files: Sequence[str]
    """Paths relative to the topic's folder, sorted. Files are deleted after the grace time for readers."""
    named_again: Sequence[str] = ()
    """Files of earlier entries that a snapshot names again. The earlier entries no longer apply to them."""
    format: int = FORMAT


def waiting_since(entries: Iterable[Expired]) -> dict[str, str]:
    """Map each unneeded file to the time since which no snapshot names it. `entries` must be in order."""
    since: dict[str, str] = {}
    for entry in entries:
        for path in entry.named_again:
            since.pop(path, None)
        for path in entry.files:
            since.setdefault(path, entry.created)
    return since


def note_named_again(
    topic: Topic, publication: PreviousPublication, files: Collection[str], created: str
) -> None:
    """Write an entry for files that a commit will name again, except files that no earlier entry lists.

    Must be called before the commit. If the commit fails, the files only stay longer.
    """

    def attempt() -> None:
        entries = list(expired_entries(topic))
        if named := sorted(waiting_since(entries).keys() & files):
            number = entries[-1].number + 1
            entry = Expired(
                number=number, created=created, publication=publication, files=(), named_again=named
            )
            if not topic.storage.create(expired_path(topic.name, number), encode(entry)):
                raise Conflict(f"another run has written {expired_path(topic.name, number)}")

    retried(attempt, f"{topic} was not made again", "run again when other runs that expire have ended")


def expired_entries(topic: Topic) -> Iterator[Expired]:
    """Yield every entry, by number. Raise MillraceError for an entry that was cut or edited."""
    for number in numbers_in(topic.storage, Folder.EXPIRED.path(topic.name)):
        path = expired_path(topic.name, number)
        yield decode(Expired, topic.storage.read(path), path)
