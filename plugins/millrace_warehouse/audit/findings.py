"""Findings of `millrace verify` on a topic, kept beside the loads for the warehouse's reader to report.

`audited/_verified` holds the present problems. A run withdraws only the problems that it has checked again: a
run without the table keeps the earlier findings on the table. If the file is missing because the topic's
folder was restored from a copy, only a run of the whole warehouse withdraws the problems that the auditor
still knows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_audit.reports.messages import VerifyProblem
from millrace_warehouse.history import layout
from millrace_warehouse.history.hours import UNFILED, start_of
from millrace_warehouse.history.manifest import FORMAT, encode

WHOLE = frozenset({"history", "table", "rows"})
MOST_REPORTED = 200
"""Most problems of a topic that are reported one by one. The auditor receives the number of all others."""
MOST_LETTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of `verify`, and the hour whose rows it concerns; None if it concerns the whole topic."""

    text: str
    hour: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Every problem of a topic that runs of `verify` have found."""

    looked_at: Sequence[str]
    """The checks that were made: `history`, and any of `table`, `rows` and `log`."""
    problems: Sequence[Problem]
    format: int = FORMAT


def write(topic: layout.Topic, looked_at: Set[str], problems: Sequence[Problem]) -> None:
    """Store the findings of a run. Do nothing if no reader counts this warehouse for an auditor."""
    if not topic.names(layout.Folder.AUDITED):
        return
    before = None
    with suppress(MillraceError):  # a damaged file is replaced
        before = read(topic)
    known = before.problems if before is not None else ()
    looked = {*looked_at}
    found = [*problems]
    if before is not None and not {*before.looked_at} <= looked and known:
        found += [problem for problem in known if problem not in found]
        looked |= {*before.looked_at}
    if found or known or looked >= WHOLE:
        findings = Findings(looked_at=sorted(looked), problems=found)
        topic.storage.put(layout.verified_path(topic.name), io.BytesIO(encode(findings)))


def read(topic: layout.Topic) -> Findings | None:
    """Return the stored findings, or None before the first problem.

    Raise MillraceError when the file was cut or edited.
    """
    return layout.find(topic.storage, Findings, layout.verified_path(topic.name))


def to_problems(findings: Findings) -> list[VerifyProblem]:
    """Convert findings for the auditor, without the problems of UNFILED rows, which belong to no window."""
    problems = [problem for problem in findings.problems if problem.hour != UNFILED]
    reported = [
        VerifyProblem(
            None if problem.hour is None else int(start_of(problem.hour).timestamp()) * 1000,
            problem.text[:MOST_LETTERS],
        )
        for problem in problems[:MOST_REPORTED]
    ]
    if (more := len(problems) - MOST_REPORTED) > 0:
        reported.append(VerifyProblem(None, f"and {more} more problems"))
    return reported
