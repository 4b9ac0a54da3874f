"""The gate of a publication: an hour is complete only if its rows are, load by load, the judged rows.

With its verdict an auditor returns the loads that it has counted in an hour, and the number of rows that it
found in their files. The publisher knows the added rows from manifests, and the present rows from the table's
entries. The verdict is valid for these rows only when all of them agree. Asks no auditor, and does not
compare sequence numbers; `closing` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from millrace_audit.answer import Changes, LoadHour
from millrace_warehouse.history.manifest import UNASKED, HourVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An auditor's answer on one hour of a topic."""

    verdict: HourVerdict
    is_carried: bool = False
    """True if the hour is proven only because `carried` is enough for the topic."""
    loads: Sequence[LoadHour] = ()
    """Loads on whose rows the verdict is based, with the edition that was counted."""
    rejected: int = 0
    """Messages of the hour that loads have set aside."""
    incident: str = ""
    """Key of the hour's worst incident; empty for none."""


MOST_HOURS = 1_000
"""Most hours in one question. An auditor answers for at most 10,000 windows, and an hour has six."""


class Auditor(Protocol):
    """Interface of an auditor: verdicts on hours."""

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        """Return the judgement of each hour. The hours ascend within a span of MOST_HOURS."""

    def changes(self, topic: str, since: str | None) -> Changes:
        """Return the hours whose final verdict changed since a cursor; all judged hours for None."""


class NoAuditor:
    """Replaces the auditor in a run without one. Every hour is `unasked`."""

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        return dict.fromkeys(hours, Judgement(verdict=HourVerdict(verdict=UNASKED)))

    def changes(self, topic: str, since: str | None) -> Changes:
        return Changes(cursor=since or "", hours=(), more=False)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of an hour that the table has once the publication is made."""

    loads: Mapping[int, LoadHour]
    """Load -> its edition, its manifest's hash, and its rows of the hour by that manifest."""
    rows: int
    """Number of rows by the table's entries, with the added rows and without the removed rows."""


def filed_by(field: str, judged: Judgement) -> Judgement:
    """Return the judgement of an hour whose rows are filed by `field`: `carried` instead of proven.

    The auditor judges a message without a header in the hour of its record's time. So a later message may
    still add a row to the hour.
    """
    if not judged.is_carried:
        return judged
    why = (
        f"rows are filed by {field}, and judged by the record's time: later messages may add rows to this"
        " hour; publish it with --unproven-after or --hour"
    )
    verdict = replace(judged.verdict, verdict="carried", reasons=[why, *judged.verdict.reasons[1:]])
    return replace(judged, verdict=verdict, is_carried=False)


def refusal(topic: str, judged: Sequence[LoadHour], held: TableRows) -> HourVerdict | None:
    """Return the verdict to use instead of `complete` if the judged rows are not the table's future rows,
    else None.

    The verdict is `pending` if the auditor only has not counted everything yet, else `incomplete`.
    """
    wrong: list[str] = []
    counted = {each.load: each for each in judged}
    for load in sorted(counted.keys() - held.loads.keys()):
        wrong.append(
            f"the auditor counted {counted[load].rows} rows of load {load} that this warehouse does not have:"
            " was it restored from an older copy? Restore a newer one, or load again and replace the counts"
            f' with `millrace audit {topic} --replace-loads --reason "..."`'
        )
    uncounted: list[str] = []
    for load, ours in sorted(held.loads.items()):
        theirs = counted.get(load)
        if theirs is None or theirs.edition < ours.edition:
            uncounted.append(
                f"load {load} (edition {ours.edition}) has {ours.rows} rows that the auditor has not counted"
                " yet: publish again when `millrace audit-warehouse` has"
            )
        elif (theirs.edition, theirs.sha256) != (ours.edition, ours.sha256):
            wrong.append(f"load {load} (edition {ours.edition}) is not the one that the auditor counted")
        elif theirs.rows != ours.rows:
            wrong.append(
                f"load {load} has {ours.rows} rows of the hour, and the auditor found {theirs.rows} in its"
                " files: run `millrace verify`"
            )
    stated = sum(load.rows for load in held.loads.values())
    if not wrong and stated != held.rows:
        wrong.append(
            f"the table would have {held.rows} rows of the hour, and the loads have {stated}: run `millrace"
            " verify`"
        )
    if wrong:
        return HourVerdict(verdict="incomplete", reasons=wrong)
    return HourVerdict(verdict="pending", reasons=uncounted) if uncounted else None
