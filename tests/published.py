"""A warehouse with loads, their table and what proves them, in few lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.manifest import HourVerdict
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.compact import CompactResult, compact_topic
from millrace_warehouse.publish.expire import ExpireResult, expire_topic
from millrace_warehouse.publish.gate import Auditor
from millrace_warehouse.publish.publisher import PublishResult, publish_topic
from millrace_warehouse.requests import Compact, Expire, Publish
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.verify import VerifyRun, verify
from millrace_warehouse.verify.check import TopicReport
from tests import loaded
from tests.counted import Counted, VerdictOf
from tests.loaded import Rows

TOPIC = "PageView"
LATER = 10 * 24 * 3600.0
"""Beyond everything that protects the young."""


@dataclass(frozen=True)
class Warehouse:
    """One topic of a local warehouse."""

    folder: Path
    storage: Storage
    catalog: Catalog

    @property
    def topic(self) -> Path:
        return self.folder / TOPIC

    @property
    def stored(self) -> Topic:
        return Topic(self.storage, TOPIC)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(table_identifier(TOPIC))

    def load(self, rows: Rows, files_per_hour: int = 1) -> int:
        return loaded.load(self.storage, TOPIC, rows, files_per_hour).load

    def read_again(self, load: int, rows: Rows) -> None:
        loaded.read_again(self.storage, TOPIC, load, rows)

    def publish(
        self, *hours: str, verdict: str = "complete", auditor: Auditor | None = None, **settings: Any
    ) -> PublishResult:
        """Publish; an auditor that has counted all loads calls every hour `verdict`, unless one is given."""
        context, options = self._context(settings)
        request = Publish(**{"topics": [TOPIC], "run_id": "run", "hours": hours, **options})
        auditor = auditor or self.auditor(lambda *_: HourVerdict(verdict=verdict))
        return publish_topic(context, request, TOPIC, auditor)

    def auditor(self, verdict_of: VerdictOf) -> Counted:
        return Counted(self.storage, verdict_of)

    def compact(self, **settings: Any) -> CompactResult:
        """Compact every hour that has more than one file."""
        context, options = self._context(settings)
        request = Compact(**{"topics": [TOPIC], "quiet_s": 0.0, "small_files": 1, **options})
        return compact_topic(context, request, TOPIC)

    def expire(self, **settings: Any) -> ExpireResult:
        """Expire as a run some days later would."""
        context, options = self._context({"clock": lambda: time.time() + LATER, **settings})
        request = Expire(**{"topic": TOPIC, "older_than_s": 0.0, "reader_grace_s": 0.0, **options})
        return expire_topic(context, request)

    def _context(self, settings: Mapping[str, Any]) -> tuple[Context, dict[str, Any]]:
        """Split settings into a verb's context and its other options."""
        places: dict[str, Any] = {"storage": self.storage, "catalog": self.catalog}
        places |= {name: settings[name] for name in Context.__slots__ if name in settings}
        options = {name: setting for name, setting in settings.items() if name not in Context.__slots__}
        return Context(**places), {"warehouse": str(self.folder), **options}

    def forget_snapshots(self) -> None:
        """Expire all snapshots but the head, as Spark's procedure does to the metadata."""
        table = self.table
        head = table.current_snapshot()
        old = [each.snapshot_id for each in table.snapshots() if each != head]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def verify(self, **settings: Any) -> TopicReport:
        run = VerifyRun(**{"storage": self.storage, "catalog": self.catalog, **settings})
        (report,) = verify(run, TOPIC)
        return report

    def problems(self, **settings: Any) -> list[str]:
        return self.verify(**settings).problems

    def data_files(self, load: int | None = None) -> list[Path]:
        """The data files of all loads, or of one, that are on disk."""
        pattern = f"rows/{'*' if load is None else f'{load:010d}-*'}/[!rt]*.parquet"
        return sorted(self.topic.glob(pattern))


@contextmanager
def warehouse(folder: Path) -> Iterator[Warehouse]:
    folder.mkdir(exist_ok=True)
    storage = open_storage(str(folder))
    with connect(storage) as catalog:
        yield Warehouse(folder, storage, catalog)
