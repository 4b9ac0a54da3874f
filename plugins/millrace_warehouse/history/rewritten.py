"""Files of the table that no load wrote: `compacted/<attempt>/`, with a list of their hashes.

A load's manifest proves the load's files. The list of an attempt proves the files that `compact` or a re-load
copied. Copied rows are as trustworthy as the check of their source. Files of other programs have no list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import Folder, Topic, attempted, find, read_edition
from millrace_warehouse.history.manifest import FORMAT, StoredFile, encode
from millrace_warehouse.storage.interface import Storage

LIST = "files.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Files that one attempt has written. They are in the table if the attempt's commit was made."""

    attempt: str
    created: str
    files: Sequence[StoredFile]
    editions: Mapping[str, int] = field(default_factory=dict)
    """Edition of the rows of each re-loaded load, by load number, as in publications."""
    format: int = FORMAT


def rewritten_folder(topic: str, attempt: str) -> str:
    """Return the folder for the files that one attempt writes."""
    return f"{Folder.COMPACTED.path(topic)}/{attempt}"


def write_list(topic: Topic, rewritten: Rewritten) -> None:
    """Write an attempt's list into its folder, before the table names the attempt's files."""
    path = f"{rewritten_folder(topic.name, rewritten.attempt)}/{LIST}"
    if not topic.storage.create(path, encode(rewritten)):
        raise MillraceError(f"{path} exists already, from another run's attempt: run again")


def read_list(storage: Storage, folder: str) -> Rewritten | None:
    """Return the list in an attempt's folder, or None for another program's folder."""
    return find(storage, Rewritten, f"{folder}/{LIST}")


class KnownFiles:
    """Data files of a topic that a manifest or a list proves, by their paths from the topic's folder."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._folders: dict[str, dict[str, StoredFile]] = {}

    def stored(self, path: str) -> StoredFile | None:
        """Return the proven size and hash of a file, or None if no load, compaction or re-load wrote it.

        Raise MillraceError when the manifest or list that proves it is missing or was edited.
        """
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._folders[folder] = {file.path: file for file in self._listed(folder)}
        return self._folders[folder].get(path)

    def _listed(self, folder: str) -> Sequence[StoredFile]:
        kind, _, name = folder.partition("/")
        if kind == "rows" and (made := attempted(name)):
            return self._of_load(*made, folder)
        path = f"{self._topic}/{folder}"
        listed = read_list(self._topic.storage, path) if kind == Folder.COMPACTED else None
        return listed.files if listed is not None else ()

    def _of_load(self, load: int, edition: int, folder: str) -> Sequence[StoredFile]:
        manifest = read_edition(self._topic, load, edition)
        return [file for file in manifest.files if file.path.startswith(f"{folder}/")]
