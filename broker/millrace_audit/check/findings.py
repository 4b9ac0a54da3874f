"""Facts about each producer instance, and the rules that it breaks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.messages import NOTHING, Hello
from millrace_audit.reports.ranges import SequenceRanges


@dataclass(slots=True)
class Window:
    """Events of one instance in one window of the topic."""

    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    failed: SequenceRanges = field(default_factory=SequenceRanges)
    fingerprint: int = 0
    """Sum of the reported fingerprints."""
    failed_fingerprint: int = 0
    is_fingerprinted: bool = True
    log: SequenceTally = field(default_factory=SequenceTally)
    """Sequences in the log, those of aborted transactions included."""
    content: int = 0
    """Sum of the fingerprints of the acknowledged messages in the log, each counted once."""
    failed_content: int = 0
    aborted: int = 0


@dataclass(slots=True)
class Instance:
    """One producer instance, by its hellos and reports and by its events of the topic."""

    number: int
    names: tuple[str, str] | None = None
    """Server and service, from the first hello."""
    cluster: str = ""
    topics: dict[str, Hello] = field(default_factory=dict)
    """The hello of each topic."""
    seal: bytes = b""
    """Seal of the next report."""
    reports: int = 0
    next_report: int = 0
    missing_reports: int = 0
    last_report: bytes = b""
    """Hash of the last report."""
    closed_through: int = NOTHING
    open_windows: set[tuple[str, int]] = field(default_factory=set)
    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    """Sequences of the topic that are reported as acknowledged, and not as failed later."""
    failed: SequenceRanges = field(default_factory=SequenceRanges)
    windows: defaultdict[int, Window] = field(default_factory=lambda: defaultdict(Window))
    """Windows of the topic by their start."""


class Instances(dict[int, Instance]):
    """Instances by their numbers; an unknown number gets a new instance."""

    def __missing__(self, number: int) -> Instance:
        self[number] = instance = Instance(number)
        return instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One instance in numbers, as the command prints it."""

    instance: int
    server: str
    service: str
    cluster: str
    """Empty: the cluster in whose topic `audit` the records are."""
    hello: bool
    reports: int
    missing_reports: int
    """Holes in the numbers of the reports."""
    closed_through: str
    windows: int
    acknowledged: int
    failed: int
    in_log: int
    """Messages, those of aborted transactions included."""
    aborted: int
    missing: int
    """Reported as acknowledged, and not in the log in that window."""
    unreported: int
    """In the log in a window, and in no report on that window."""
    duplicates: int
    holes: int
    fingerprints: str


class Violation(NamedTuple):
    """A broken rule of the protocol; without an instance it concerns the topic."""

    instance: int | None
    text: str


class Violations:
    """The broken rules, each once, with its number of cases and the place of the first case."""

    def __init__(self) -> None:
        self._cases: dict[Violation, tuple[int, str]] = {}

    def add(self, instance: int | None, rule: str, place: str = "") -> None:
        count, first = self._cases.get(Violation(instance, rule), (0, place))
        self._cases[Violation(instance, rule)] = count + 1, first

    def of(self, instances: set[int | None]) -> list[Violation]:
        """Return the violations by these instances, with their places in the text."""
        return [
            Violation(violation.instance, _located(violation.text, *case))
            for violation, case in self._cases.items()
            if violation.instance in instances
        ]


def _located(rule: str, count: int, first: str) -> str:
    if not first:
        return rule
    return f"{first}: {rule}" if count == 1 else f"{first} and {count - 1:,} more: {rule}"
