"""The demo's proof: compares the acknowledged messages with the rows that can be read back, one by one.

The proof compares sets of (topic, instance, sequence), never totals: a loss and a duplicate in the same hour
must not cancel each other out. It reads the Parquet files directly with pyarrow, so that a bug in Millrace's
own readers cannot hide a bug in its writers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.dataset as pads

from millrace_audit.reports.ranges import in_words, size

Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Published:
    """Acknowledged events of one producer instance and topic: closed ranges of sequences."""

    topic: str
    server: str
    instance: int
    ranges: Sequence[tuple[int, int]]

    @property
    def count(self) -> int:
        return size(self.ranges)


@dataclass(frozen=True, slots=True)
class Finding:
    """Sequences of one instance that are lost, duplicated or were never acknowledged."""

    kind: str
    topic: str
    server: str
    instance: int
    sequences: Sequence[tuple[int, int]]

    @property
    def count(self) -> int:
        return size(self.sequences)

    def __str__(self) -> str:
        return (
            f"{self.count} {self.kind}: {self.topic}, server {self.server}, instance {self.instance},"
            f" sequences {in_words(self.sequences)}"
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison's outcome."""

    published: int
    loaded: int
    findings: Sequence[Finding]

    def count(self, kind: str) -> int:
        return sum(finding.count for finding in self.findings if finding.kind == kind)


def compare(published: Iterable[Published], files: Mapping[str, Sequence[Path]]) -> Proof:
    """Compare every acknowledged message with the rows of each topic's Parquet files."""
    by_topic: dict[str, list[Published]] = {topic: [] for topic in files}
    for entry in published:
        by_topic.setdefault(entry.topic, []).append(entry)
    findings: list[Finding] = []
    loaded = 0
    for topic, entries in by_topic.items():
        instances, sequences = _rows(files.get(topic, ()))
        loaded += len(sequences)
        for entry in entries:
            findings += _compare_instance(entry, sequences[instances == entry.instance])
        expected = np.isin(instances, [entry.instance for entry in entries])
        for stranger in np.unique(instances[~expected]):
            ranges = _ranges(sequences[instances == stranger])
            findings.append(Finding("never acknowledged", topic, "unknown", int(stranger), ranges))
    total = sum(entry.count for entries in by_topic.values() for entry in entries)
    return Proof(total, loaded, findings)


def loaded_files(topic: Path) -> list[Path]:
    """Return the Parquet files that the manifests of a topic's loads name."""
    manifests = [json.loads(path.read_text()) for path in sorted((topic / "loads").glob("*.json"))]
    return [topic / file["path"] for manifest in manifests for file in manifest["files"]]


def _rows(files: Sequence[Path]) -> tuple[Sequences, Sequences]:
    """Return the (instance, sequence) of every row, as two arrays of int64; -1 in rows without a header."""
    if not files:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    data = pads.dataset([str(file) for file in files], format="parquet")
    # A record header is in columns of its own, which are null in the row of a message without one.
    in_value = "header" in data.schema.names
    names = [("header", "instance"), ("header", "sequence")] if in_value else [("_instance",), ("_sequence",)]
    table = data.to_table(columns={name[-1]: pads.field(*name) for name in names})
    instances, sequences = (column.fill_null(-1).to_numpy() for column in table.columns)
    return instances, sequences


def _compare_instance(entry: Published, loaded: Sequences) -> list[Finding]:
    expected = np.concatenate(
        [np.arange(first, last + 1) for first, last in entry.ranges] or [np.empty(0, np.int64)]
    )
    unique, counts = np.unique(loaded, return_counts=True)
    kinds = {
        "lost": np.setdiff1d(expected, unique),
        "duplicated": unique[counts > 1],
        "never acknowledged": np.setdiff1d(unique, expected),
    }
    return [
        Finding(kind, entry.topic, entry.server, entry.instance, _ranges(sequences))
        for kind, sequences in kinds.items()
        if len(sequences)
    ]


def _ranges(sequences: Sequences) -> list[tuple[int, int]]:
    """Return sorted distinct sequences as closed ranges."""
    ordered = np.unique(sequences)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    return [(int(run[0]), int(run[-1])) for run in np.split(ordered, breaks) if len(run)]
