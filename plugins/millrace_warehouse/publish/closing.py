"""Whether the rows of an hour are those that its loads have counted: a publication's own proof, by sequences.

Reads the columns of the audit header in the files that are added, and the sequences that the loads' manifests
state. Asks no auditor, and says nothing of rows without a header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.hours import HOUR_US, UNFILED, hour_of
from millrace_warehouse.history.layout import read_edition
from millrace_warehouse.history.manifest import LoadManifest, LoadRows
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.sequences import count_file
from millrace_warehouse.storage import Storage, open_file

_HOUR_MS = HOUR_US // 1000


def unclosed(storage: Storage, topic: str, hours: Mapping[str, Sequence[LoadRows]]) -> dict[str, list[str]]:
    """Hour -> why the rows of these loads in it are not what the loads have counted; without those that are.

    MillraceError when a manifest is missing or edited.
    """
    problems: dict[str, list[str]] = {}
    by_edition: dict[tuple[int, int], list[str]] = {}
    for hour, loads in hours.items():
        for rows in loads if hour != UNFILED else ():
            by_edition.setdefault((rows.load, rows.edition), []).append(hour)
    for (load, edition), of_edition in sorted(by_edition.items()):
        manifest = read_edition(storage, topic, load, edition)
        if not manifest.sequences and manifest.sequences_file is None:
            continue  # no row of it has a header
        stated = sequences_of(storage, manifest)
        for hour in of_edition:
            for problem in _differences(storage, manifest, hour, stated):
                problems.setdefault(hour, []).append(problem)
    return problems


def _differences(
    storage: Storage, manifest: LoadManifest, hour: str, stated: SequenceCounts
) -> Iterator[str]:
    found = SequenceCounts()
    for file in manifest.files:
        if file.hour == hour:
            path = f"{manifest.topic}/{file.path}"
            try:
                found.merge(count_file(open_file(storage, path)))
            except FileNotFoundError:
                return  # the commit refuses it, and says what to do
            except (pa.ArrowException, OSError) as error:
                yield f"{path} cannot be read: {str(error).splitlines()[0]}; run `millrace verify`"
                return
    expected, there = _of_hour(stated, hour), _of_hour(found, hour)
    lacking, more = expected.without(there), there.without(expected).total
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
    found = SequenceCounts()
    with suppress(pa.ArrowException, OSError):  # then its rows are missing
        for file in manifest.files:
            if file.hour == UNFILED:
                found.merge(count_file(open_file(storage, f"{manifest.topic}/{file.path}")))
    return found


def _of_hour(counts: SequenceCounts, hour: str) -> SequenceCounts:
    return SequenceCounts(
        {key: tally for key, tally in counts.tallies.items() if hour_of(key.window // _HOUR_MS) == hour}
    )
