"""Proof of the publications: the replay of all manifests gives the state that each publication states.

The chain of publications is followed back from the table, or from the ledger, and replayed from an empty
table: every row of every published load, and every row that waits. The replay is a second implementation,
because the publishing code cannot vouch for itself. Reads manifests alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from millrace_warehouse.history.hours import UNFILED, hour_of, partition_of
from millrace_warehouse.history.manifest import HourChange, LoadRows, Publication
from millrace_warehouse.publish.state import COMPLETE
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.history import History

Rows = dict[str, dict[int, LoadRows]]
"""Hour -> load -> the load's rows of the hour."""


@dataclass(slots=True)
class Replay:
    """Rows that the table must hold after the last publication, and rows that wait."""

    publications: Sequence[Publication]
    """The chain of publications, the oldest first."""
    published: set[str] = field(default_factory=set)
    """Published hours, with UNFILED if its rows are published."""
    incomplete: set[str] = field(default_factory=set)
    table: Rows = field(default_factory=lambda: defaultdict(dict))
    waiting: Rows = field(default_factory=lambda: defaultdict(dict))
    lost: Rows = field(default_factory=dict)
    """Rows that the table should hold, but for which a rebuild found no file."""
    through: int = 0
    editions: dict[int, int] = field(default_factory=dict)
    was_in_table: set[tuple[int, int, str]] = field(default_factory=set)
    """Load, edition and hour of all rows that the table ever had."""

    @property
    def publication(self) -> Publication:
        return self.publications[-1]

    def edition(self, load: int) -> int:
        return self.editions.get(load, 1)

    @property
    def rows(self) -> int:
        return _total(self.table) - _total(self.lost)

    def expected(self, hour: str) -> dict[int, int]:
        """Return load -> the number of its rows of an hour that must be in the table."""
        lost = self.lost.get(hour, {})
        parts = self.table.get(hour, {})
        return {load: part.rows - (lost[load].rows if load in lost else 0) for load, part in parts.items()}


def _total(rows: Rows) -> int:
    return sum(part.rows for loads in rows.values() for part in loads.values())


@dataclass(slots=True)
class _Change:
    """Expected change of an hour in one publication."""

    loads: dict[int, LoadRows] = field(default_factory=dict)
    removed: int = 0
    found: int = 0
    """Lost rows that a rebuild found again."""

    @property
    def added(self) -> int:
        return sum(part.rows for part in self.loads.values()) + self.found


def check_publications(
    check: Check, history: History, recorded: Collection[str], head: str | None
) -> Replay | None:
    """Check the chain of publications that ends at path `head`. Return None without a chain or without its
    replay.

    `recorded` are the paths of the publications in the ledger. Without `head`, the chain ends at the newest
    of them.
    """
    head = head or max(recorded, default=None)
    if head is None:
        return None
    publications = _chain(check, head)
    paths = {path for path, _ in publications}
    for path in sorted({*recorded} - paths):
        check.problem(f"{path} is in the ledger, and the newest publication {head} does not follow it")
    for path in sorted(paths - {*recorded}):
        check.unrecorded(path, newest=path == head)
    check.report.publications = len(publications)
    if not publications or publications[0][1].previous is not None:
        return None
    return _replayed(check, history, publications)


def _chain(check: Check, head: str) -> list[tuple[str, Publication]]:
    """Return the publications from the oldest that can be reached to `head`, each with its path."""
    publications: list[tuple[str, Publication]] = []
    path, sha256 = head, ""
    while path:
        publication = check.read(Publication, path)
        if publication is None:
            break
        if sha256 and publication.sha256 != sha256:
            check.problem(f"{path} is not the publication that its successor names")
        # Numbers may be skipped: a rebuild continues from the newest readable publication.
        if publication.topic != check.topic.name or (
            publications and publication.number >= publications[-1][1].number
        ):
            check.problem(f"{path} is publication {publication.number} of {publication.topic}")
        publications.append((path, publication))
        path, sha256 = (
            (publication.previous.path, publication.previous.sha256) if publication.previous else ("", "")
        )
    return publications[::-1]


def _replayed(
    check: Check, history: History, publications: Sequence[tuple[str, Publication]]
) -> Replay | None:
    replay = Replay([publication for _, publication in publications])
    sound = True
    for path, publication in publications:
        try:
            problems = _play(replay, history, publication)
        except KeyError as error:
            check.problem(
                f"{path}: load and edition {error} cannot be read, so nothing after it can be proven"
            )
            return None
        if problems and sound:  # later publications repeat the difference
            check.problem(*(f"{path}: {problem}" for problem in problems))
            sound = False
    return replay


def _play(replay: Replay, history: History, publication: Publication) -> list[str]:
    """Replay one publication. Return every way in which its manifest differs."""
    if publication.loads.load < replay.through:
        return [
            f"it follows the loads to {publication.loads.load}, the publication before to {replay.through}"
        ]
    editions = {int(load): edition for load, edition in publication.loads.editions.items()}
    if any(editions.get(load, 1) < edition for load, edition in replay.editions.items()):
        return ["it follows an older edition than the publication before it"]
    changes: dict[str, _Change] = defaultdict(_Change)
    for load, edition in sorted(editions.items()):
        if load <= replay.through and edition != replay.edition(load):
            _remove(replay, changes, load, history.manifests[load, replay.edition(load)].rows_by_hour())
            _add(replay, changes, load, edition, history.manifests[load, edition].rows_by_hour())
    for load in range(replay.through + 1, publication.loads.load + 1):
        edition = editions.get(load, 1)
        _add(replay, changes, load, edition, history.manifests[load, edition].rows_by_hour())
    replay.through, replay.editions = publication.loads.load, editions
    for stated in publication.changes:
        for hour in stated.hours:
            _publish(replay, changes, stated, hour)
        if stated.kind == "rebuild":
            _lose(replay, changes, stated.hour, publication.lost.get(stated.hour, ()))
    problems = _compare_changes(changes, publication.changes)
    if replay.through and history.manifests[replay.through, 1].sha256 != publication.loads.sha256:
        problems.append(f"it followed another load {replay.through} than the one that is there")
    return problems + _compare_states(replay, publication)


def _remove(replay: Replay, changes: dict[str, _Change], load: int, hours: Mapping[str, int]) -> None:
    for hour in hours:
        if hour in replay.published:
            lost = replay.lost.get(hour, {}).pop(load, None)
            changes[hour].removed += replay.table[hour].pop(load).rows - (lost.rows if lost else 0)
        else:
            del replay.waiting[hour][load]


def _add(
    replay: Replay, changes: dict[str, _Change], load: int, edition: int, hours: Mapping[str, int]
) -> None:
    for hour, rows in hours.items():
        part = LoadRows(load=load, edition=edition, rows=rows)
        if hour in replay.published:
            _into_table(replay, changes, hour, part)
        else:
            replay.waiting[hour][load] = part


def _into_table(replay: Replay, changes: dict[str, _Change], hour: str, part: LoadRows) -> None:
    replay.table[hour][part.load] = changes[hour].loads[part.load] = part
    replay.was_in_table.add((part.load, part.edition, hour))


def _publish(replay: Replay, changes: dict[str, _Change], stated: HourChange, hour: str) -> None:
    if hour not in replay.published and stated.kind == "first":
        replay.published.add(hour)
        for part in replay.waiting.pop(hour, {}).values():
            _into_table(replay, changes, hour, part)
    if stated.verdict.verdict == COMPLETE:
        replay.incomplete.discard(hour)
    elif hour != UNFILED:
        replay.incomplete.add(hour)


def _lose(replay: Replay, changes: dict[str, _Change], hour: str, parts: Iterable[LoadRows]) -> None:
    """Take rows that a rebuild lost out of an hour, or put them back. Only the publication lists them."""
    before = sum(part.rows for part in replay.lost.pop(hour, {}).values())
    lost = {part.load: part for part in parts}
    if lost:
        replay.lost[hour] = lost
    now = sum(part.rows for part in lost.values())
    changes[hour].found, changes[hour].removed = max(before - now, 0), max(now - before, 0)


def _compare_changes(changes: Mapping[str, _Change], stated: Iterable[HourChange]) -> list[str]:
    problems = []
    by_hour = {change.hour: change for change in stated}
    for hour in sorted(changes.keys() | by_hour.keys()):
        mine, its = changes.get(hour, _Change()), by_hour.get(hour)
        if its is None:
            if mine.added or mine.removed:
                problems.append(
                    f"it lacks a change of {hour}: {mine.added} rows added, {mine.removed} removed"
                )
            continue
        if (its.added, its.removed) != (mine.added, mine.removed):
            problems.append(
                f"{hour}: it states {its.added} rows added and {its.removed} removed, the loads give"
                f" {mine.added} and {mine.removed}"
            )
        if sorted(its.loads, key=attrgetter("load")) != sorted(mine.loads.values(), key=attrgetter("load")):
            problems.append(f"{hour}: its loads are not those of the added rows")
    return problems


def _compare_states(replay: Replay, publication: Publication) -> list[str]:
    """Return every way in which a publication's state differs from the replay's."""
    problems = []
    hours = replay.published - {UNFILED}
    if _ranges(hours) != [list(pair) for pair in publication.published]:
        problems.append("its published hours are not those that the changes up to it give")
    if (UNFILED in replay.published) != publication.unfiled_published:
        problems.append("it and the changes differ on whether rows without an hour are published")
    if _ranges(replay.incomplete) != [list(pair) for pair in publication.incomplete]:
        problems.append("its incomplete hours are not those that the verdicts give")
    stated = {hour: {part.load: part for part in loads} for hour, loads in publication.unpublished.items()}
    mine = {hour: loads for hour, loads in replay.waiting.items() if loads}
    for hour in sorted(mine.keys() | stated.keys()):
        if mine.get(hour) != stated.get(hour):
            rows, stated_rows = (sum(p.rows for p in each.get(hour, {}).values()) for each in (mine, stated))
            problems.append(f"{hour}: it states {stated_rows} rows that wait, the loads give {rows}")
    if {hour: list(loads.values()) for hour, loads in replay.lost.items() if loads} != {
        hour: list(loads) for hour, loads in publication.lost.items()
    }:
        problems.append("its lost rows are not those that the changes up to it give")
    if replay.rows != publication.rows:
        problems.append(f"it states {publication.rows} rows in the table, the loads give {replay.rows}")
    return problems + _check_complete(replay, publication)


def _ranges(hours: Iterable[str]) -> list[list[str]]:
    """Return the ranges [first, last] of these hours, ascending, neither overlapping nor adjoining."""
    ranges: list[list[int]] = []
    for number in sorted(number for number in map(partition_of, hours) if number is not None):
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [[hour_of(first), hour_of(last)] for first, last in ranges]


def _check_complete(replay: Replay, publication: Publication) -> list[str]:
    """Check the complete hours: each is published and complete, and the hour after them is not."""
    complete = replay.published - replay.incomplete - {UNFILED}
    start, end = (
        partition_of(publication.complete_from or UNFILED),
        partition_of(publication.complete_until or UNFILED),
    )
    if start is None or end is None:
        return ["it states no complete hours, and there are some"] if complete or start != end else []
    until = hour_of(end)
    problems = [
        f"it states that the hours to {until} are complete, and {hour} is not"
        for hour in map(hour_of, range(start, end))
        if hour not in complete
    ]
    if until in complete:
        problems.append(f"it states that the hours to {until} are complete, and {until} is complete as well")
    return problems[:1]
