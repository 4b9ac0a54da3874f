"""An auditor for tests that has counted every load which is there when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from millrace_audit.answer import Changes, LoadHour
from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import Verdict
from millrace_warehouse.publish.gate import Judgement
from millrace_warehouse.storage.verbs import Storage

VerdictOf = Callable[[str, str], Verdict]


class Counted:
    """Verdicts are those of a function; the loads that it names are those of the warehouse."""

    def __init__(self, storage: Storage, verdict_of: VerdictOf, changed: Sequence[datetime] = ()) -> None:
        self._storage, self._verdict_of, self._changed = storage, verdict_of, changed

    def judge(self, topic: str, hour: str) -> Judgement:
        verdict = self._verdict_of(topic, hour)
        return Judgement(verdict=verdict, loads=counted_loads(self._storage, topic, hour))

    def changes(self, topic: str, since: str | None) -> Changes:
        return Changes(cursor="1", hours=self._changed, more=False)


def counted_loads(storage: Storage, topic: str, hour: str) -> list[LoadHour]:
    """The newest edition of each load with rows in the hour: what an auditor names that has counted all."""
    editions, loads = layout.newest_editions(storage, topic), []
    for load in layout.load_numbers(storage, topic, 0):
        manifest = layout.read_edition(storage, topic, load, editions.get(load, 1))
        if rows := manifest.rows_by_hour().get(hour, 0):
            loads.append(LoadHour(load, manifest.edition, manifest.sha256, rows))
    return loads
