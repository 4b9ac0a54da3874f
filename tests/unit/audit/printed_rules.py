"""The table of rules in docs/audit-verdict.md; `python -m tests.unit.audit.printed_rules` prints it there."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_audit.auditor.verdict.rules import NOTE, RULES, SPECIAL_RULES
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "audit-verdict.md"
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"


def printed() -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    yield "rule", "verdict", "when", "reason", "next command", "cause", "runbook"
    yield ("---",) * 7
    for rule in (*SPECIAL_RULES, *RULES):
        verdict = "note" if rule.verdict == NOTE else rule.verdict
        command = f"`{rule.command}`" if rule.command else ""
        runbook = f"[{rule.runbook}](runbooks.md#{rule.runbook.lower()})" if rule.runbook else ""
        yield f"`{rule.name}`", verdict, rule.when, rule.reason, command, rule.cause, runbook


def in_page(text: str) -> str:
    """The table in the page's text."""
    return text.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace(BEGIN + in_page(text) + END, BEGIN + printed() + END))
