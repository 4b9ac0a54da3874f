"""Messages that a load set aside, counted by window in its files of rejected messages.

Ignores the load's own statements about them, except for files without times. The windows of a missing or
broken file, or of a file of an older version, are not known: the messages may belong to any window between
the load's first and last time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start
from millrace_audit.reports.messages import RejectedMessages
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.load.rejections import Reasons
from millrace_warehouse.storage import Storage, open_file

MOST_REPORTED = 1000
"""Most windows with rejected messages that are reported for an edition. Later windows become one span."""
MOST_LETTERS = 200
EARLIEST_COUNTED = -(1 << 63) + WINDOW_MS
"""Times of records before this one count as this one, in ms."""
_COLUMNS = ["records", "reason", "timestamp", "keyed"]
NOT_KNOWN = "not known which"


@dataclass(slots=True)
class _Window:
    messages: int = 0
    keyed: int = 0
    reasons: Reasons = field(default_factory=Reasons)

    def add(self, counts: Iterable[tuple[str, int]]) -> None:
        """Add the number of messages for each reason."""
        counts = [*counts]
        self.messages += sum(messages for _, messages in counts)
        self.reasons.add(counts)


def rejected_messages(storage: Storage, manifest: LoadManifest) -> list[RejectedMessages]:
    """Return an edition's rejected messages by window: MOST_REPORTED entries at most, and the rest."""
    windows: dict[int, _Window] = {}
    unknown = Counter[str]()
    for file in manifest.rejected_files:
        path = f"{manifest.topic}/{file.path}"
        try:
            for window, records, keyed, reason in _rows(storage, path):
                if window is None:
                    unknown[f"{NOT_KNOWN}: {reason}"] += records
                else:
                    found = windows.setdefault(window, _Window())
                    found.add([(reason, records)])
                    found.keyed += records if keyed else 0
        except FileNotFoundError:
            unknown[f"{NOT_KNOWN}: {path} is gone"] += file.records
        except (pa.ArrowException, OSError) as error:
            unknown[f"{NOT_KNOWN}: {path} cannot be read: {str(error).splitlines()[0]}"] += file.records
    if unknown:
        first, last = map(window_start, _times(manifest))
        if first == last:  # a single window: it is known
            windows.setdefault(first, _Window()).add(unknown.items())
            unknown.clear()
    reported = [_entry(window, windows[window]) for window in sorted(windows)]
    if len(reported) > MOST_REPORTED:
        reported = [*reported[:MOST_REPORTED], _span(reported[MOST_REPORTED:])]
    if unknown:
        reason = unknown.most_common(1)[0][0][:MOST_LETTERS]
        reported.append(RejectedMessages(first, last, unknown.total(), 0, reason))
    return reported


def _rows(storage: Storage, path: str) -> Iterator[tuple[int | None, int, bool, str]]:
    """Yield for each row the window, the number of records, True if they have a header, and the reason."""
    with open_file(storage, path) as content, pq.ParquetFile(content) as file:
        there = [name for name in _COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=there):
            for row in batch.to_pylist():
                time = row.get("timestamp")
                window = None if time is None else window_start(max(time, EARLIEST_COUNTED))
                yield window, row["records"], bool(row.get("keyed")), row["reason"]


def _entry(window: int, found: _Window) -> RejectedMessages:
    reason, _ = max(found.reasons.counts.items(), key=lambda item: item[1])
    return RejectedMessages(window, window, found.messages, found.keyed, reason[:MOST_LETTERS])


def _span(entries: list[RejectedMessages]) -> RejectedMessages:
    return RejectedMessages(
        entries[0].window,
        entries[-1].window,
        sum(entry.messages for entry in entries),
        sum(entry.keyed for entry in entries),
        f"{NOT_KNOWN}: in {len(entries):,} windows",
    )


def _times(manifest: LoadManifest) -> tuple[int, int]:
    """Return the first and last event time of a load's rows, or without rows the hour before it."""
    first = [part.min_time_ms for part in manifest.partitions if part.min_time_ms is not None]
    last = [part.max_time_ms for part in manifest.partitions if part.max_time_ms is not None]
    if first and last:
        return min(first), max(last)
    created = int(datetime.fromisoformat(manifest.created).timestamp() * 1000)
    return created - HOUR_MS, created
