"""Outcomes that the callbacks of an application received: a file with a line of JSON for each event.

    {"sequence": 7, "outcome": "acknowledged"}    "instance" is needed beside several instances
    {"sha256": "2c26b4...", "outcome": "failed"}  of the value, if the application knows no sequence

Sequences are kept as ranges. A hash takes some 200 bytes until its message is found in the log.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import Any

from millrace.errors import MillraceError
from millrace_audit.reports.ranges import SequenceRanges

ACKNOWLEDGED, FAILED = "acknowledged", "failed"


@dataclass(slots=True)
class CallbackOutcomes:
    """Outcomes by sequence or by the hash of the value."""

    sequences: defaultdict[int | None, defaultdict[str, SequenceRanges]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(SequenceRanges))
    )
    """Instance, None where the file names none -> outcome -> sequences."""
    balance: Counter[bytes] = field(default_factory=Counter)
    """Hash -> number of its acknowledged events, less those in the log that are reported as acknowledged."""
    has_hashes: bool = False
    failed_hashes: int = 0
    """Number of failed events that are given by their hash."""

    def acknowledge(self, value: bytes) -> None:
        """Count a message of the log that is reported as acknowledged."""
        if self.has_hashes:
            digest = sha256(value).digest()
            self.balance[digest] -= 1
            if not self.balance[digest]:
                del self.balance[digest]

    def add(self, line: str) -> None:
        """Add a line of the file. Raise ValueError, KeyError or TypeError when it has another form."""
        entry: Any = json.loads(line)
        outcome = entry["outcome"]
        if outcome not in (ACKNOWLEDGED, FAILED):
            raise ValueError
        if "sha256" in entry:
            self.has_hashes = True
            digest = bytes.fromhex(entry["sha256"])
            if len(digest) != sha256().digest_size:
                raise ValueError
            if outcome == ACKNOWLEDGED:
                self.balance[digest] += 1
            else:
                self.failed_hashes += 1
        else:
            sequence, instance = entry["sequence"], entry.get("instance")
            if type(sequence) is not int or type(instance) not in (int, NoneType):
                raise ValueError
            self.sequences[instance][outcome].add(sequence, sequence)


def read_outcomes(path: Path) -> CallbackOutcomes:
    """Read a file of outcomes. Raise MillraceError, with its number, for a line of another form."""
    outcomes = CallbackOutcomes()
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                outcomes.add(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise MillraceError(
                    f"{path}, line {number} is no outcome: write lines like"
                    f' {{"sequence": 7, "outcome": "{ACKNOWLEDGED}"}}, with "{FAILED}" for a failure, and'
                    ' "sha256" of the value in place of "sequence" if the application does not know it'
                ) from None
    return outcomes
