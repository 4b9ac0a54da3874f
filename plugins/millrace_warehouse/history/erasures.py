"""Files of a topic's erasures: the erasure, its condition, and the proof that it is done.

    <id>.where        the condition, which may name a person: deleted when no log can have the rows
    <id>.json         who asked, when, why, and until when loads leave matching rows out; creating it erases
    <id>.done.json    the newest load that was examined, and the rows taken out of each hour

Once `<id>.json` exists, every load and re-load leaves out the rows that match, so that rows which the logs
still hold do not return. New editions take out the rows that were loaded before. Handles these files; depends
on neither rows nor tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import Folder, Topic, find
from millrace_warehouse.history.manifest import FORMAT, LoadManifest, encode, now
from millrace_warehouse.storage.interface import Storage

DONE = ".done.json"
RECORD = re.compile(r"(.+)\.json")
WHERE = ".where"


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """One erasure, without its condition."""

    topic: str
    id: str
    reason: str
    by: str
    created: str
    in_force_until: str | None
    """Time from which no log can hold any of the erased rows; None if that time is not known."""
    all_rows: bool = False
    """True if the erasure may match every row."""
    rejected: bool = False
    """True if the erasure also takes the bytes of all rejected records, which have no columns to test."""
    format: int = FORMAT

    def is_in_force(self, at: str) -> bool:
        """Return True while a load may still read rows that were erased."""
        return self.in_force_until is None or at < self.in_force_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Proof that every row that an erasure matches is out of the loads and out of the table."""

    topic: str
    id: str
    created: str
    through: int
    """The newest load that was examined. Later loads began after the erasure was created."""
    editions: Mapping[str, int]
    """Load, as a decimal number -> the last edition that was examined, for loads with more than one."""
    hours: Mapping[str, int]
    """Hour -> rows that were taken out of it."""
    loads: Mapping[str, int]
    """Load, as a decimal number -> rows that were taken out of it."""
    rejected: int = 0
    """Rejected records that lost their bytes."""
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(self.hours.values())


@dataclass(frozen=True, slots=True)
class Erasing:
    """An erasure as the writers of rows apply it."""

    id: str
    where: str
    rejected: bool = False


def _path(topic: str, id_: str, ending: str) -> str:
    return f"{Folder.ERASURES.path(topic)}/{id_}{ending}"


def condition_path(topic: str, id_: str) -> str:
    return _path(topic, id_, WHERE)


def erasure_ids(topic: Topic) -> list[str]:
    """Return the ids of a topic's erasures, by one listing."""
    names = topic.names(Folder.ERASURES)
    return [match[1] for name in names if not name.endswith(DONE) and (match := RECORD.fullmatch(name))]


def recorded(topic: Topic) -> list[Erasure]:
    """Return every erasure of a topic, the oldest first. Raise MillraceError for one that was edited."""
    found = [read_erasure(topic, id_) for id_ in erasure_ids(topic)]
    return sorted(
        (erasure for erasure in found if erasure is not None), key=lambda one: (one.created, one.id)
    )


def read_erasure(topic: Topic, id_: str) -> Erasure | None:
    return find(topic.storage, Erasure, _path(topic.name, id_, ".json"))


def read_done(topic: Topic, id_: str) -> Done | None:
    """Return the counts of rows that an erasure has taken out, or None until the erasure is done."""
    return find(topic.storage, Done, _path(topic.name, id_, DONE))


def condition_of(topic: Topic, id_: str) -> str | None:
    """Return an erasure's condition, or None when it was deleted or never written."""
    try:
        return topic.storage.read(condition_path(topic.name, id_)).decode()
    except FileNotFoundError:
        return None


def create_erasure(topic: Topic, erasure: Erasure, where: str) -> Erasure:
    """Create an erasure, or return the existing erasure with its id.

    Raise MillraceError if the two differ.
    """
    id_, another_id = erasure.id, "choose another --id"
    # In this order: a reader that finds the erasure finds the condition.
    made = topic.storage.create(condition_path(topic.name, id_), where.encode())
    if not made and condition_of(topic, id_) != where:
        raise MillraceError(f"erasure {id_} of {topic} has another condition: {another_id}")
    topic.storage.create(_path(topic.name, id_, ".json"), encode(erasure))
    there = read_erasure(topic, id_)
    assert there is not None
    if erasure.rejected and not there.rejected:
        raise MillraceError(f"erasure {id_} of {topic} does not take rejected records: {another_id}")
    return there


def write_done(storage: Storage, done: Done) -> None:
    """Write the proof that an erasure is done, unless another run has written it."""
    storage.create(_path(done.topic, done.id, DONE), encode(done))


def to_apply(topic: Topic, at: str, *, again: bool = False) -> Sequence[Erasing]:
    """Return the erasures in force, which a load must apply. With `again`, for a re-load, return all
    erasures.

    Raise MillraceError when the condition of an erasure in force is missing: a load without it would bring
    rows back.
    """
    erasing = []
    for erasure in recorded(topic):
        where = condition_of(topic, erasure.id)
        if where is None and erasure.is_in_force(at):
            raise MillraceError(
                f"{condition_path(topic.name, erasure.id)} is missing, and the erasure is in force: restore"
                " it from a copy"
            )
        if where is not None and (again or erasure.is_in_force(at)):
            erasing.append(Erasing(erasure.id, where, erasure.rejected))
    return erasing


def with_same_condition(topic: Topic, where: str, rejected: bool) -> Erasure | None:
    """Return the newest erasure with this condition that is in force or not done, or None.

    With `rejected`, the erasure must also take the bytes of rejected records.
    """
    for erasure in reversed(recorded(topic)):
        goes_on = erasure.is_in_force(now()) or read_done(topic, erasure.id) is None
        takes_all = erasure.rejected or not rejected
        if goes_on and takes_all and condition_of(topic, erasure.id) == where:
            return erasure
    return None


def taking_bytes(topic: Topic) -> set[str]:
    """Return the erasures that take bytes. An edition that lists one has no bytes of rejected records."""
    return {erasure.id for erasure in recorded(topic) if erasure.rejected}


def old_conditions(topic: Topic, at: str) -> list[str]:
    """Return the paths of the stored conditions of erasures that are done and no longer in force."""
    return [
        condition_path(topic.name, erasure.id)
        for erasure in recorded(topic)
        if not erasure.is_in_force(at) and read_done(topic, erasure.id) is not None
        if condition_of(topic, erasure.id) is not None
    ]


def missed_erasure(topic: Topic, manifest: LoadManifest) -> str | None:
    """Return an erasure that the edition missed, so that it may contain erased rows; None if it missed none.

    An edition misses an erasure if it was begun before the erasure and finished after it. A first edition
    misses none, because an erasure takes the number of every running load. An erasure whose condition was
    deleted does not count: no log has the erased rows any more.
    """
    for id_ in erasure_ids(topic) if manifest.edition > 1 else ():
        done = read_done(topic, id_)
        if done is None or id_ in manifest.erasures or manifest.load > done.through:
            continue
        if manifest.edition > done.editions.get(str(manifest.load), 1) and not _is_over(topic, id_):
            return id_
    return None


def _is_over(topic: Topic, id_: str) -> bool:
    erasure = read_erasure(topic, id_)
    is_in_force = erasure is None or erasure.is_in_force(now())
    return not is_in_force and condition_of(topic, id_) is None


def stale_reason(topic: Topic, manifest: LoadManifest) -> str | None:
    """Return the reason why an edition must not be published, or None when it may."""
    id_ = missed_erasure(topic, manifest)
    return id_ and (
        f"edition {manifest.edition} of load {manifest.load} of {topic} was begun before erasure {id_} and"
        " made after it: erase again with the same --where and another --id"
    )
