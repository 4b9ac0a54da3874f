"""Findings of `millrace verify` on a topic, kept beside the loads for the warehouse's reader to report.

`audited/_verified` has what is wrong now. A run takes back only what it has looked for as well: one without
the table says nothing of what an earlier one found in the table. Where the file is gone, because the topic's
folder was put back from a copy, only a run of the whole warehouse takes back what the auditor may still hold.
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
from millrace_warehouse.storage import Storage

WHOLE = frozenset({"history", "table", "rows"})
MOST_TOLD = 200
"""Problems that the auditor is told of, of a topic; beyond them it hears how many more there are."""
MOST_LETTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of `verify`, and the hour whose rows it is about; None for the whole topic."""

    text: str
    hour: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that is wrong with a topic, as far as runs of `verify` have looked."""

    looked_at: Sequence[str]
    """`history`, and those of `table`, `rows` and `log` that were asked for."""
    problems: Sequence[Problem]
    format: int = FORMAT


def note(storage: Storage, topic: str, looked_at: Set[str], problems: Sequence[Problem]) -> None:
    """Keep what a run has found; nothing where nobody counts the warehouse for an auditor."""
    if not storage.names(layout.Folder.AUDITED.of(topic)):
        return
    before = None
    with suppress(MillraceError):  # one that was cut is written anew
        before = read(storage, topic)
    known = before.problems if before is not None else ()
    looked = {*looked_at}
    found = [*problems]
    if before is not None and not {*before.looked_at} <= looked and known:
        found += [problem for problem in known if problem not in found]
        looked |= {*before.looked_at}
    if found or known or looked >= WHOLE:
        findings = Findings(looked_at=sorted(looked), problems=found)
        storage.put(layout.verified_path(topic), io.BytesIO(encode(findings)))


def read(storage: Storage, topic: str) -> Findings | None:
    """What was kept; None before anything was wrong. MillraceError when it was cut or edited."""
    return layout.find(storage, Findings, layout.verified_path(topic))


def told(findings: Findings) -> list[VerifyProblem]:
    """As the auditor is told; rows without an hour are in no window."""
    problems = [problem for problem in findings.problems if problem.hour != UNFILED]
    said = [
        VerifyProblem(
            None if problem.hour is None else int(start_of(problem.hour).timestamp()) * 1000,
            problem.text[:MOST_LETTERS],
        )
        for problem in problems[:MOST_TOLD]
    ]
    if (more := len(problems) - MOST_TOLD) > 0:
        said.append(VerifyProblem(None, f"and {more} more problems"))
    return said
