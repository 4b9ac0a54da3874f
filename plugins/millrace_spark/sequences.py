"""Which sequences of which producers a batch of rows holds: the audit header's columns, counted at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.audit.counts import SequenceCounts
from millrace.errors import MillraceError

HEADER_FIELDS = ("time", "server", "service", "instance", "sequence")


def count_sequences(batch: pa.RecordBatch | pa.Table, counts: SequenceCounts | None = None) -> SequenceCounts:
    """The rows of a batch by producer, window and sequence, added to `counts` or to a new account.

    The batch needs an audit header: a struct column `header` with the five HEADER_FIELDS. A table whose
    schema has none raises MillraceError.
    """
    counts = SequenceCounts() if counts is None else counts
    time, server, service, instance, sequence = _header_columns(batch)
    if not batch.num_rows:
        return counts
    times = time.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() // 1000
    instances, sequences = instance.to_numpy(), sequence.to_numpy()
    servers, services = pc.dictionary_encode(server), pc.dictionary_encode(service)
    names = (servers.dictionary.to_pylist(), services.dictionary.to_pylist())
    which = servers.indices.to_numpy() * len(names[1]) + services.indices.to_numpy()
    # An instance has one server and service; asking separately for each pair keeps a liar's rows apart.
    for pair in np.unique(which).tolist():
        rows = slice(None) if len(names[0]) == len(names[1]) == 1 else which == pair
        producer = (names[0][pair // len(names[1])], names[1][pair % len(names[1])])
        counts.add_arrays(instances[rows], times[rows], sequences[rows], _always(producer))
    return counts


def _always(producer: tuple[str, str]) -> Callable[[int], tuple[str, str]]:
    return lambda row: producer


def _header_columns(batch: pa.RecordBatch | pa.Table) -> list[pa.Array]:
    index = batch.schema.get_field_index("header")
    type_ = batch.schema.types[index] if index >= 0 else None
    if type_ is None or not pa.types.is_struct(type_):
        raise MillraceError(
            "the table has no audit header: a record `header` must be its schema's first field"
        )
    missing = [name for name in HEADER_FIELDS if type_.get_field_index(name) < 0]
    if missing:
        raise MillraceError(
            f"the audit header has no field {missing[0]!r}: use the one of schemas/PageView.avsc"
        )
    header = batch.column(index)
    if isinstance(header, pa.ChunkedArray):
        header = header.combine_chunks()
    return [header.field(name) for name in HEADER_FIELDS]
