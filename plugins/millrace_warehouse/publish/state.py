"""The state of a table's hours, published and waiting, which each publication stores for the next.

A run reads one publication and the manifests of newer loads, so its cost does not grow with history. An hour
is either published or waits: rows that come for a published hour are added to it at once. The state does not
decide whether an hour is complete; `due` and the publisher do. Handles manifests; uses neither a storage, a
catalog nor an auditor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millrace_warehouse.history.hours import (
    FIRST_HOUR,
    UNFILED,
    hour_of,
    hours_in,
    number_of,
    partition_of,
    ranges_of,
)
from millrace_warehouse.history.manifest import (
    HourChange,
    HourVerdict,
    LoadManifest,
    LoadRows,
    PreviousPublication,
    Publication,
    Through,
    now,
    sealed,
)

COMPLETE, PENDING = "complete", "pending"
UNKNOWN = HourVerdict(verdict="unknown", reasons=["these rows have no valid time, so they cannot be judged"])
"""Verdict on UNFILED."""
ReadEdition = Callable[[int, int], LoadManifest]
"""Load and edition -> the manifest of that edition."""


def _still_complete(
    before: HourVerdict | None, old: LoadManifest, new: LoadManifest, hour: str
) -> HourVerdict | None:
    """Return the verdict of a complete hour that has lost erased rows only. The auditor need not be asked.

    If it was asked and has taken the verdict back, `before` stays.
    """
    if before is not None and before.verdict != COMPLETE:
        return before
    gone = old.rows_by_hour().get(hour, 0) - new.rows_by_hour().get(hour, 0)
    reasons = [*(before.reasons if before is not None else ())]
    if gone:
        reasons.append(f"{gone} rows of load {new.load} were erased by {new.erases}")
    return HourVerdict(verdict=COMPLETE, reasons=reasons)


def _if_sound(hour: str | None) -> int | None:
    """Return the number of an hour, or None for None and for an hour before 2000."""
    number = None if hour is None else number_of(hour)
    return number if number is None or number >= FIRST_HOUR else None


def _joined(changes: Iterable[HourChange], rejected: Mapping[str, int]) -> list[HourChange]:
    """Merge changes of consecutive empty complete hours with equal verdict, watermark and reasons."""
    joined: list[HourChange] = []
    for change in changes:
        merged = joined[-1] if joined else change
        if _follows(merged, change) and not rejected.keys() & {merged.hour, change.hour}:
            joined[-1] = replace(merged, last=change.hour)
        else:
            joined.append(change)
    return joined


def _follows(merged: HourChange, change: HourChange) -> bool:
    is_empty = not (change.loads or change.added or change.removed or change.aside)
    if not is_empty or change.kind != "first" or change.verdict.verdict != COMPLETE:
        return False
    verdict = replace(change.verdict, checked=merged.verdict.checked)
    same = replace(change, hour=merged.hour, last=merged.last, verdict=verdict) == merged
    return same and number_of(change.hour) == number_of(merged.last or merged.hour) + 1


@dataclass(slots=True)
class PendingChange:
    """Change of one hour, published or not, in the next publication."""

    kind: str
    loads: list[LoadRows] = field(default_factory=list)
    removed: int = 0
    verdict: HourVerdict | None = None

    @property
    def added(self) -> int:
        return sum(load.rows for load in self.loads)


@dataclass(slots=True)
class TableState:
    """The state that a publication holds, and the changes of the next publication."""

    number: int
    through: Through
    schema: int
    published: set[int]
    """Numbers of the published hours, like `incomplete`; UNFILED is stated separately."""
    unfiled_published: bool
    incomplete: set[int]
    unpublished: dict[str, list[LoadRows]]
    complete_from: int | None
    rows: int
    lost: dict[str, list[LoadRows]]
    aside: dict[str, Counter[str]] = field(default_factory=dict)
    """Hour -> kind -> messages that did not become rows. The hour's next change takes them over."""
    judged_through: str | None = None
    """The auditor's cursor. No final verdict has changed before it without being in the table."""
    changes: dict[str, PendingChange] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    """Re-loaded load -> the edition whose rows the table has and must lose."""

    @classmethod
    def from_publication(cls, publication: Publication | None) -> TableState:
        """Return the state that a publication has left, or the first state for None."""
        if publication is None:
            nothing = Through(load=0, sha256="", editions={})
            return cls(0, nothing, 0, set(), False, set(), {}, None, 0, {})
        return cls(
            number=publication.number,
            through=publication.loads,
            schema=publication.schema,
            published=hours_in(publication.published),
            unfiled_published=publication.unfiled_published,
            incomplete=hours_in(publication.incomplete),
            unpublished={hour: list(loads) for hour, loads in publication.unpublished.items()},
            complete_from=_if_sound(publication.complete_from),
            rows=publication.rows,
            lost={hour: list(loads) for hour, loads in publication.lost.items()},
            aside={hour: Counter(kinds) for hour, kinds in publication.waiting_aside.items()},
            judged_through=publication.judged_through,
        )

    def is_published(self, hour: str) -> bool:
        return self.unfiled_published if hour == UNFILED else number_of(hour) in self.published

    def is_complete(self, number: int | None) -> bool:
        """Return True for the number of a complete hour. None is UNFILED, which is never complete."""
        return number in self.published and number not in self.incomplete

    def follow(
        self, loads: Iterable[LoadManifest], editions: Mapping[int, int], read_edition: ReadEdition
    ) -> None:
        """Add the rows of newer loads and of newer editions to published hours, or to the waiting rows.

        Of a re-loaded load only the newest edition counts.
        """
        for load, edition in sorted(editions.items()):
            before = self.through.editions.get(str(load), 1)
            if load <= self.through.load and edition > before:
                since = [read_edition(load, each) for each in range(before + 1, edition + 1)]
                kind = "erase" if all(each.erases for each in since) else "reload"
                self._replace(read_edition(load, before), since[-1], kind)
        for first in loads:
            edition = editions.get(first.load, 1)
            manifest = first if edition == 1 else read_edition(first.load, edition)
            seen = dict(self.through.editions)
            if edition > 1:
                seen[str(first.load)] = edition
            self.through = Through(load=first.load, sha256=first.sha256, editions=seen)
            for hour, rows in manifest.rows_by_hour().items():
                self._take(LoadRows(load=first.load, edition=edition, rows=rows), hour, "late")
            self._count_aside(manifest, 1)

    def _count_aside(self, manifest: LoadManifest, sign: int) -> None:
        """Add a load's messages without rows; with sign -1, subtract those of a replaced edition."""
        for each in manifest.aside_by_hour:
            kinds = self.aside.setdefault(each.hour, Counter())
            kinds[each.kind] += sign * each.messages
            if not any(kinds.values()):
                del self.aside[each.hour]

    def _take(self, rows: LoadRows, hour: str, kind: str) -> None:
        if hour in self.changes or self.is_published(hour):
            self._change(hour, kind).loads.append(rows)
        else:
            self.unpublished.setdefault(hour, []).append(rows)

    def _change(self, hour: str, kind: str) -> PendingChange:
        """Return the hour's pending change. Any change but an erasure needs a new verdict."""
        change = self.changes.setdefault(hour, PendingChange(kind))
        if change.kind == "erase" and kind != "erase":
            change.kind, change.verdict = kind, None
        return change

    def _replace(self, old: LoadManifest, new: LoadManifest, kind: str) -> None:
        """Replace the rows of a load's earlier edition by the rows of its newer edition."""
        load, gone, come = old.load, old.rows_by_hour(), new.rows_by_hour()
        for hour in sorted(gone.keys() | come.keys()):
            change = self.changes.get(hour)
            if change is not None and any(rows.load == load for rows in change.loads):
                change.loads = [
                    rows for rows in change.loads if rows.load != load
                ]  # the next publication was to add these rows
            elif self.is_published(hour):
                change = self._change(hour, kind)
                if kind == "reload":
                    change.kind = kind
                if kind == "erase" == change.kind and self.is_complete(partition_of(hour)):
                    change.verdict = _still_complete(change.verdict, old, new, hour)
                change.removed += gone.get(hour, 0) - self._found_again(hour, load)
                if hour in gone:
                    self.replaced.setdefault(load, old.edition)
            elif hour in self.unpublished:
                waiting = [rows for rows in self.unpublished[hour] if rows.load != load]
                if waiting:
                    self.unpublished[hour] = waiting
                else:
                    del self.unpublished[hour]
            if hour in come:
                self._take(LoadRows(load=load, edition=new.edition, rows=come[hour]), hour, kind)
        self._count_aside(old, -1)
        self._count_aside(new, 1)
        seen = {**self.through.editions, str(load): new.edition}
        self.through = replace(self.through, editions=seen)

    def _found_again(self, hour: str, load: int) -> int:
        """Forget that rows of a load are lost, because a newer edition has them. Return their number."""
        lost = [rows for rows in self.lost.get(hour, ()) if rows.load == load]
        rest = [rows for rows in self.lost.pop(hour, ()) if rows.load != load]
        if rest:
            self.lost[hour] = rest
        return sum(rows.rows for rows in lost)

    def publish(self, hour: str, verdict: HourVerdict) -> None:
        """Publish an hour that waits, or that has no rows at all."""
        loads = self.unpublished.pop(hour, [])
        self.changes[hour] = PendingChange("first", loads, verdict=verdict)

    def judge(self, hour: str, verdict: HourVerdict) -> None:
        """Set the verdict of a published hour, after its rows changed or the auditor was asked again."""
        self.changes.setdefault(hour, PendingChange("verdict")).verdict = verdict

    def settled(self) -> list[HourChange]:
        """Return all changes by the next publication, hour by hour. The state is then the state after it."""
        changes = []
        for hour, change in sorted(self.changes.items()):
            if change.kind in ("reload", "erase") and not change.loads and not change.removed:
                continue
            verdict = change.verdict
            assert verdict is not None, f"nobody judged {hour}"
            if hour == UNFILED:
                self.unfiled_published = True
            else:
                self.published.add(number_of(hour))
                if verdict.verdict == COMPLETE:
                    self.incomplete.discard(number_of(hour))
                else:
                    self.incomplete.add(number_of(hour))
            self.rows += change.added - change.removed
            changes.append(
                HourChange(
                    hour=hour,
                    kind=change.kind,
                    loads=[rows for rows in change.loads if rows.rows],
                    verdict=verdict,
                    added=change.added,
                    removed=change.removed,
                    aside={kind: count for kind, count in self.aside.pop(hour, {}).items() if count},
                )
            )
        self.changes = {}
        self.complete_from = self._complete_from()
        return changes

    def _complete_from(self) -> int | None:
        first = self.complete_from
        if first is None:
            complete = self.published - self.incomplete
            return min((number for number in complete if number >= FIRST_HOUR), default=None)
        while self.is_complete(first) and self.is_complete(first - 1):
            first -= 1
        return first

    @property
    def complete_until(self) -> int | None:
        """Return the end of the unbroken sequence of complete hours from `complete_from` on."""
        until = self.complete_from
        while until is not None and self.is_complete(until):
            until += 1
        return until

    def to_publication(
        self,
        topic: str,
        attempt: str,
        run_id: str,
        previous: PreviousPublication | None,
        changes: Sequence[HourChange],
        rejected: Mapping[str, int] | None = None,
    ) -> Publication:
        """Return the next publication, which stores this state.

        `rejected` maps each changed hour to its messages that loads have set aside.
        """
        return sealed(
            Publication(
                topic=topic,
                number=self.number + 1,
                attempt=attempt,
                run_id=run_id,
                created=now(),
                previous=previous,
                loads=self.through,
                schema=self.schema,
                published=ranges_of(self.published),
                unfiled_published=self.unfiled_published,
                unpublished=self.unpublished,
                complete_from=None if self.complete_from is None else hour_of(self.complete_from),
                complete_until=None if self.complete_until is None else hour_of(self.complete_until),
                incomplete=ranges_of(self.incomplete),
                rows=self.rows,
                lost=self.lost,
                waiting_aside={hour: dict(kinds) for hour, kinds in self.aside.items()},
                changes=_joined(changes, rejected or {}),
                rejected=rejected or {},
                judged_through=self.judged_through,
            )
        )
