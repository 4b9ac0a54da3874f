"""The loads of one topic: the loads to report to the auditor, and the Kafka records that report them.

Loads are reported in order, and each edition after the edition before it. A report is noted in `audited/`
once the brokers have it, so a reader that was killed repeats at most one load, with the same records. Handles
files and records; depends on neither turns nor brokers.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import LoadCount, LoadEnd, LoadNumber, UnkeyedRows, editions_hash
from millrace_audit.reports.publish import EditionRows, edition_records
from millrace_warehouse.audit.read_back import ReadBack
from millrace_warehouse.history import layout
from millrace_warehouse.history.hours import HOUR_US, hour_of
from millrace_warehouse.history.manifest import LoadManifest, Through
from millrace_warehouse.history.stored import erased_sequences_of

_AUDITED = re.compile(r"(\d{10})\.(\d{4,})\.json\.gz")


LOOKED_AT_S = 60.0
"""Time in seconds for which a manifest that was read is assumed to be unchanged."""


class LoadId(NamedTuple):
    """A load by its number and its manifest; 0 for none."""

    load: int = 0
    sha256: str = ""


class Loads:
    """The loads of a topic that were reported, and the loads still to report."""

    def __init__(self, topic: layout.Topic) -> None:
        self._topic = topic
        there = topic.names(layout.Folder.AUDITED)
        names = map(_AUDITED.fullmatch, there)
        self._reported = {(int(name[1]), int(name[2])) for name in names if name}
        self._is_whole = layout.AUDITED_ROWS in there
        """True if every report included its rows. A version that reported no rows left no such mark."""
        self._erased: dict[tuple[int, int], SequenceCounts] = {}
        self._newest = max((load for load, _ in self._reported), default=0)
        self._editions: dict[int, int] = {}
        self._listed = 0
        """The newest load in the folder."""
        self._sure_of, self._sure_until = LoadId(), 0.0
        """The load whose manifest was read last, and the time until which it is assumed to be unchanged."""

    def to_report(self) -> Iterator[LoadManifest]:
        """Yield the manifests to report, in order. Report each manifest before asking for the next one.

        Raise MillraceError for a manifest that is missing or edited, or does not follow its predecessor.
        """
        self._forget_lost()
        yield from self._without_rows()
        if self._listed > self._newest:
            yield from layout.loads_after(self._topic, self._newest)
        reported_editions = {
            load: e for load, e in layout.editions_of(self._topic).items() if load <= self._newest
        }
        for load, editions in sorted(reported_editions.items()):
            for edition in editions:
                if (load, edition) not in self._reported:
                    yield layout.read_edition(self._topic, load, edition)
        self._editions = {load: editions[-1] for load, editions in reported_editions.items()}

    def _without_rows(self) -> Iterator[LoadManifest]:
        """Yield, once, all editions that an earlier version reported without their rows."""
        path = layout.audited_rows_path(self._topic.name)
        if not self._is_whole:
            for load, edition in sorted(self._reported):
                yield layout.read_edition(self._topic, load, edition)
            self._topic.storage.put(path, io.BytesIO(b"{}"))
            self._is_whole = True

    def _forget_lost(self) -> None:
        """Forget the reports of loads that are gone or different: the folder was restored from an older copy.

        Loads in their place are reported again. Reading the newest load is enough, because its manifest names
        the load before it.
        """
        numbers = layout.load_numbers(self._topic, max(self._newest - 1, 0))
        while self._newest > 0 and not self._is_present(numbers):
            for load, edition in sorted(self._reported, reverse=True):
                if load == self._newest:
                    self._topic.storage.delete(layout.audited_path(self._topic.name, load, edition))
                    self._reported.discard((load, edition))
            self._newest = max((load for load, _ in self._reported), default=0)
            numbers = layout.load_numbers(self._topic, max(self._newest - 1, 0))
        self._listed = numbers[-1] if numbers else 0

    def _is_present(self, numbers: Sequence[int]) -> bool:
        """Return True if the newest reported load, from which `numbers` begin, is in the folder."""
        load = self._newest
        if load not in numbers:
            return False
        if load == self._sure_of.load and time.monotonic() < self._sure_until:
            return True
        self._look_at(load)
        return self._sure_of.sha256 == self._read_report(load, 1).get("manifest")

    def _look_at(self, load: int) -> None:
        self._sure(LoadId(load, layout.read_load(self._topic, load).sha256))

    def _sure(self, newest: LoadId) -> None:
        self._sure_of, self._sure_until = newest, time.monotonic() + LOOKED_AT_S

    def newest(self) -> LoadId:
        """Return the newest load that was in the folder at the last `to_report`."""
        load = max(self._listed, self._newest)
        if load != self._sure_of.load:
            self._look_at(load)
        return self._sure_of

    def editions(self) -> str:
        """Return a hash of the newest editions of re-loaded loads, as of the last `to_report`."""
        return editions_hash(self._editions)

    def lagging_hours(self, published: Through) -> set[str] | None:
        """Return the hours in which a table lacks reported rows, or None while the table has rows that are
        not reported yet.
        """
        editions = {int(load): edition for load, edition in published.editions.items()}
        if published.load > self._newest or not {*editions.items()} <= self._reported:
            return None
        late = [(load, 1) for load in range(published.load + 1, self._newest + 1)]
        # An edition that the table does not have yet, and the edition whose rows it has instead.
        for load, edition in self._reported:
            if load <= published.load and edition > editions.get(load, 1):
                late += [(load, edition), (load, edition - 1)]
        manifests = (layout.read_edition(self._topic, *each) for each in late)
        return {file.hour for manifest in manifests for file in manifest.files}

    def accounted(self, manifest: LoadManifest, found: ReadBack) -> SequenceCounts:
        """Return the sequence numbers in the files, with the erased ones: the auditor must miss neither.

        For an edition that an erasure made, only rows of the edition before count as erased.
        """
        erased = found.erased
        if manifest.erases and manifest.edition > 1:
            before = self._reported_counts(manifest.load, manifest.edition - 1)
            erased = erased.without(erased.without(before.without(found.counts)))
        counts = SequenceCounts()
        counts.merge(found.counts)
        counts.merge(erased)
        return counts

    def erased_by_hour(self) -> dict[str, SequenceCounts]:
        """Return the erased sequence numbers of the reported loads by hour: a published table need not have
        their rows.

        Each manifest is read once. No manifest is read before the first erasure.
        """
        newest: dict[int, int] = {}
        for load, edition in self._reported if self._topic.names(layout.Folder.ERASURES) else ():
            newest[load] = max(edition, newest.get(load, 0))
        hours: dict[str, SequenceCounts] = {}
        for reported in sorted(newest.items()):
            if reported not in self._erased:
                manifest = layout.read_edition(self._topic, *reported)
                self._erased[reported] = erased_sequences_of(self._topic.storage, manifest)
            for key, tally in self._erased[reported].tallies.items():
                counts = hours.setdefault(hour_of(key.window // (HOUR_US // 1000)), SequenceCounts())
                counts.merge(SequenceCounts({key: tally}))
        return hours

    def records(self, manifest: LoadManifest, counts: SequenceCounts, found: ReadBack) -> Sequence[LoadCount]:
        """Return the Kafka records that report an edition, given its accounted sequence numbers."""
        before, unkeyed_before = SequenceCounts(), dict[int, UnkeyedRows]()
        if manifest.edition > 1:
            before = self._reported_counts(manifest.load, manifest.edition - 1)
            unkeyed_before = self._reported_unkeyed(manifest.load, manifest.edition - 1)
        source = LoadNumber(
            load=manifest.load,
            edition=manifest.edition,
            manifest=self._topic.storage.uri(layout.manifest_path(manifest)),
            sha256=manifest.sha256,
        )
        ends = [LoadEnd(manifest.topic_id, partition, end) for partition, end in manifest.ends.items()]
        rows = EditionRows(_more(found.unkeyed, unkeyed_before), found.hours, found.rejected)
        return edition_records(manifest.topic, source, before, counts, ends, rows)

    def add_report(
        self, manifest: LoadManifest, counts: SequenceCounts, unkeyed: Mapping[int, UnkeyedRows]
    ) -> None:
        """Note in `audited/` that an edition was reported, with its counts."""
        rows = [astuple(each) for each in unkeyed.values()]
        reported = {"manifest": manifest.sha256, "counts": counts.to_json(), "unkeyed": rows}
        path = layout.audited_path(manifest.topic, manifest.load, manifest.edition)
        content = gzip.compress(json.dumps(reported, sort_keys=True).encode(), mtime=0)
        if (manifest.load, manifest.edition) in self._reported:
            self._topic.storage.put(path, io.BytesIO(content))
        else:
            self._topic.storage.create(path, content)
        self._reported.add((manifest.load, manifest.edition))
        if manifest.load > self._newest:
            self._newest = manifest.load
            self._sure(LoadId(manifest.load, manifest.sha256))

    def _reported_counts(self, load: int, edition: int) -> SequenceCounts:
        return SequenceCounts.from_json(self._read_report(load, edition)["counts"])

    def _reported_unkeyed(self, load: int, edition: int) -> dict[int, UnkeyedRows]:
        """Return the reported rows; none if an older version reported the edition without them."""
        rows = self._read_report(load, edition).get("unkeyed", [])
        return {each.window: each for each in (UnkeyedRows(*row) for row in rows)}

    def _read_report(self, load: int, edition: int) -> Mapping[str, Any]:
        path = layout.audited_path(self._topic.name, load, edition)
        try:
            report: Mapping[str, Any] = json.loads(gzip.decompress(self._topic.storage.read(path)))
            SequenceCounts.from_json(report["counts"])
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            raise MillraceError(
                f"{path} is gone or was edited: restore it from a copy; the editions of load {load} cannot be"
                " reported without it"
            ) from None
        return report


def _more(now: Mapping[int, UnkeyedRows], before: Mapping[int, UnkeyedRows]) -> list[UnkeyedRows]:
    """Return the differences from `before` by window; negative where there are fewer rows now."""
    more = []
    for window in sorted({*now, *before}):
        here, there = (each.get(window, UnkeyedRows(window, 0)) for each in (now, before))
        if here != there:
            more.append(UnkeyedRows(window, here.rows - there.rows, here.unfiled - there.unfiled))
    return more
