"""Records written before data files are deleted: `expired/<10 digits>.json`, one for each run.

They name files, not loads. An hour that late rows reach keeps the files of a few loads for ever, and a record
of loads would keep those loads whole. A file that the table takes back is recorded as well: the time that its
readers get starts again when no snapshot names it any more. Knows no table.
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
    """Paths from the topic's folder, sorted; deleted once readers have had their time."""
    named_again: Sequence[str] = ()
    """Files of earlier records that the table has taken back: the earlier records no longer apply to them."""
    format: int = FORMAT


def waiting_since(entries: Iterable[Expired]) -> dict[str, str]:
    """Map each file to when it was found unneeded, since the table named it last; entries in order."""
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
    """Record that the table takes files back; do nothing for files that no earlier record lists.

    Must be called before the commit: if the commit fails, the files only stay longer.
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
    """Return every record, by number; MillraceError for one that was cut or edited."""
    for number in numbers_in(topic.storage, Folder.EXPIRED.of(topic.name)):
        path = expired_path(topic.name, number)
        yield decode(Expired, topic.storage.read(path), path)
