"""Removes the rows that erasures match from batches, for tasks that decode and for new editions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.columns import TIME
from millrace_warehouse.history.condition import Condition
from millrace_warehouse.history.erasures import Erasing
from millrace_warehouse.history.hours import hour_of
from millrace_warehouse.history.manifest import ErasedRows
from millrace_warehouse.load.hour_files import hours_of
from millrace_warehouse.sequences import count_sequences

RowsTaken = Counter[tuple[str, int, str]]
"""Erasure, partition and hour -> rows."""


@dataclass(slots=True)
class Eraser:
    """Removes the rows that erasures match from batches, and counts them."""

    erasing: Sequence[Erasing]
    taken: RowsTaken = field(default_factory=Counter)
    sequences: SequenceCounts = field(default_factory=SequenceCounts)
    _conditions: list[tuple[str, Condition]] = field(init=False)

    def __post_init__(self) -> None:
        self._conditions = [(each.id, Condition(each.where)) for each in self.erasing]

    def kept(self, rows: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
        """Return the rows that no erasure matches. A row that several erasures match counts for the first."""
        for id_, condition in self._conditions:
            if not len(rows):
                break
            mask = condition.mask(rows, schema)
            if mask.true_count:
                self._count(id_, rows.filter(mask))
                rows = rows.filter(pc.invert(mask))
        return rows

    def _count(self, id_: str, rows: pa.RecordBatch) -> None:
        count_sequences(rows, self.sequences)
        hours = hours_of(rows.column(TIME.name)).tolist()
        partitions = rows.column("_topic_partition").to_pylist()
        for number, partition in zip(hours, partitions, strict=True):
            self.taken[id_, partition, hour_of(number if number >= 0 else None)] += 1


def erased_rows(taken: RowsTaken) -> list[ErasedRows]:
    return [
        ErasedRows(erasure=id_, partition=partition, hour=hour, rows=rows)
        for (id_, partition, hour), rows in sorted(taken.items())
    ]
