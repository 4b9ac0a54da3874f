"""An auditor for tests that has counted every load which is there when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from millrace_audit.answer import Changes, LoadHour
from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import HourVerdict
from millrace_warehouse.publish.gate import Judgement
from millrace_warehouse.storage.interface import Storage

VerdictOf = Callable[[str, str], HourVerdict]


class Counted:
    """Verdicts are those of a function; the loads that it names are those of the warehouse."""

    def __init__(self, storage: Storage, verdict_of: VerdictOf, changed: Sequence[datetime] = ()) -> None:
        self._storage, self._verdict_of, self._changed = storage, verdict_of, changed

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        verdicts = {hour: self._verdict_of(topic, hour) for hour in hours}
        loads = counted_loads(self._storage, topic)
        return {hour: Judgement(verdict=verdicts[hour], loads=loads.get(hour, ())) for hour in hours}

    def changes(self, topic: str, since: str | None) -> Changes:
        return Changes(cursor="1", hours=self._changed, more=False)


def counted_loads(storage: Storage, topic: str) -> dict[str, list[LoadHour]]:
    """Hour -> the newest edition of each load with rows in it, as an auditor names that has counted all."""
    folder = layout.Topic(storage, topic)
    editions = layout.newest_editions(folder)
    loads: dict[str, list[LoadHour]] = {}
    for load in layout.load_numbers(folder):
        manifest = layout.read_edition(folder, load, editions.get(load, 1))
        for hour, rows in manifest.rows_by_hour().items():
            loads.setdefault(hour, []).append(LoadHour(load, manifest.edition, manifest.sha256, rows))
    return loads
