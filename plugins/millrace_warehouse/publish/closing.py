"""Proof by sequence numbers, before a publication, that an hour's rows are the rows that its loads have
counted.

Reads the columns of the audit header in the added files. Reads them in the table, too, if the hour's rows
there have not passed this check before. Compares them with the manifests of the loads. Asks no auditor. Rows
without a header have no sequence numbers and are counted by load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.columns import LOAD
from millrace_warehouse.history.hours import HOUR_US, UNFILED, hour_of
from millrace_warehouse.history.layout import Topic, read_edition
from millrace_warehouse.history.manifest import LoadManifest, LoadRows
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.publish.contents import rows_by_load
from millrace_warehouse.sequences import HEADER_COLUMNS, FileRows, count_sequences
from millrace_warehouse.storage import Storage, open_file

_HOUR_MS = HOUR_US // 1000


def unclosed(topic: Topic, hours: Mapping[str, Sequence[LoadRows]]) -> dict[str, list[str]]:
    """Map each hour whose rows differ from these loads' counts to the differences.

    Raise MillraceError when a manifest is missing or edited.
    """
    problems: dict[str, list[str]] = {}
    by_edition: dict[tuple[int, int], list[str]] = {}
    for hour, loads in hours.items():
        for rows in loads if hour != UNFILED else ():
            by_edition.setdefault((rows.load, rows.edition), []).append(hour)
    for (load, edition), of_edition in sorted(by_edition.items()):
        manifest = read_edition(topic, load, edition)
        stated = sequences_of(topic.storage, manifest)
        for hour in of_edition:
            for problem in _differences(topic.storage, manifest, hour, stated):
                problems.setdefault(hour, []).append(problem)
    return problems


def unclosed_in_table(
    topic: Topic, table: Table, hour: str, loads: Sequence[LoadRows], without: Collection[int]
) -> list[str]:
    """Return how a table's rows of an hour differ from these loads' counts, or [] if they agree.

    Rows of the loads `without`, which a publication removes, do not count.
    """
    found, rows = SequenceCounts(), Counter[int | None]()
    for file in head_files(table, [hour]).get(hour, ()):
        try:
            for batch in _rows_of(table, file.file_path):
                kept = batch.filter(
                    pc.invert(pc.is_in(batch.column(LOAD.name), pa.array([*without], pa.int64())))
                )
                rows.update(rows_by_load([kept]))
                count_sequences(kept, found)
        except (pa.ArrowException, OSError, KeyError) as error:
            return [f"{file.file_path} cannot be read: {_first_line(error)}; run `millrace verify`"]
    expected, stated = SequenceCounts(), Counter[int | None]()
    for each in loads:
        manifest = read_edition(topic, each.load, each.edition)
        expected.merge(_of_hour(sequences_of(topic.storage, manifest), hour))
        stated[each.load] += each.rows
    lacking, more = expected.without(found).total, found.without(expected).total
    if rows == stated and not lacking and not more:
        return []
    return [
        f"the table's rows of the hour are not those that its loads counted: {rows.total()} rows of"
        f" {stated.total()}; {lacking} sequences missing, {more} too many; run `millrace verify --rows`"
    ]


def _rows_of(table: Table, uri: str) -> Iterator[pa.RecordBatch]:
    """Yield the columns `_load` and the audit header, if any, of a file of the table."""
    with table.io.new_input(uri).open() as content, pq.ParquetFile(content) as file:
        yield from file.iter_batches(columns=[LOAD.name, *HEADER_COLUMNS])


def _differences(
    storage: Storage, manifest: LoadManifest, hour: str, stated: SequenceCounts
) -> Iterator[str]:
    found = SequenceCounts()
    for file in manifest.files:
        if file.hour == hour:
            path, there = f"{manifest.topic}/{file.path}", FileRows()
            try:
                there.add(open_file(storage, path))
            except FileNotFoundError:
                return  # the commit refuses it, with advice
            except (pa.ArrowException, OSError) as error:
                yield f"{path} cannot be read: {_first_line(error)}; run `millrace verify`"
                return
            found.merge(there.counts)
            if there.rows != file.rows:
                yield f"{path} has {there.rows} rows, the load wrote {file.rows}: run `millrace verify`"
    expected = _of_hour(stated, hour)
    lacking, more = expected.without(found), found.without(expected).total
    if lacking.total and not more and not lacking.without(_unfiled(storage, manifest)).total:
        yield (
            f"{lacking.total} rows of load {manifest.load} are of this hour by a clock that was more than a"
            " day ahead: they have no hour"
        )
    elif lacking.total or more:
        yield (
            f"the rows of load {manifest.load} are not those that it counted: {lacking.total} missing,"
            f" {more} too many; run `millrace verify --rows`"
        )


def _unfiled(storage: Storage, manifest: LoadManifest) -> SequenceCounts:
    found = FileRows()
    with suppress(pa.ArrowException, OSError):  # its rows then count as missing
        for file in manifest.files:
            if file.hour == UNFILED:
                found.add(open_file(storage, f"{manifest.topic}/{file.path}"))
    return found.counts


def _of_hour(counts: SequenceCounts, hour: str) -> SequenceCounts:
    return SequenceCounts(
        {key: tally for key, tally in counts.tallies.items() if hour_of(key.window // _HOUR_MS) == hour}
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
