"""Raw batches to Arrow: framing, schema ids and columns put together, every record accounted for.

A record is accepted as a row or rejected with a reason and its bytes; none is dropped. Does not fetch,
write or know Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace_spark.ranges import Cut, RangeStats
from millrace_spark.reading import FetchedBatches


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records that could not be decoded: one, or all `records` of a batch that cannot even be unpacked."""

    partition: int
    offset: int
    records: int
    schema_id: int | None
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Accepted rows with the columns of `Decoder.arrow_schema`, and what was rejected among them."""

    rows: pa.RecordBatch
    rejected: list[Rejected]


class Decoder:
    """Decodes messages of any writer schema into the columns of one table schema.

    `lookup` gives the parsed writer schema of an id, None when the registry does not know it, and raises
    when the registry cannot be asked: an unknown id rejects a record, an unreachable registry fails the task.
    """

    arrow_schema: pa.Schema
    """The table schema's fields, then _partition int32, _offset int64, _timestamp timestamp[us, UTC],
    _key binary, _schema_id int32. Everything nullable: Parquet readers lose `not null` anyway."""

    def __init__(
        self, table_schema: Mapping[str, Any], lookup: Callable[[int], Mapping[str, Any] | None]
    ) -> None:
        raise NotImplementedError

    def decode(
        self, cut: Cut, fetched: Iterable[FetchedBatches], stats: RangeStats
    ) -> Iterator[DecodedBatch]:
        """Rows of a cut in batches of about 10,000, records outside the range left out, `stats` filled in."""
        raise NotImplementedError
