"""A topic that is loaded with a wrong decoder, and read again after that was mended.

Two decoders read the same log: the second one, after the fix, reads messages that the first rejects, and puts
some rows into another hour.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro

from millrace.records import Message
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import first_schema, pinned
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.load.reload import ReloadRun
from millrace_warehouse.storage import Storage, open_storage
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID, TOPIC, MemoryLog, event, load_run, no_progress

MOVED_ID, LATER_ID = 8, 9


def _swapped(names: Mapping[str, str]) -> dict[str, Any]:
    header = SCHEMA["fields"][0]["type"]
    types = {each["name"]: each["type"] for each in header["fields"]}
    renamed = [names.get(each["name"], each["name"]) for each in header["fields"]]
    fields = [{"name": name, "type": types[name]} for name in renamed]
    return {
        **SCHEMA,
        "fields": [{"name": "header", "type": {**header, "fields": fields}}, SCHEMA["fields"][1]],
    }


SWAPPED = _swapped({"time": "instance", "instance": "time"})
"""As SCHEMA, but what it calls the instance is the time."""
DECODERS: tuple[Mapping[int, Any], ...] = (
    {SCHEMA_ID: SCHEMA, MOVED_ID: SCHEMA},
    {SCHEMA_ID: SCHEMA, MOVED_ID: SWAPPED, LATER_ID: SCHEMA},
)
"""Before and after the fix."""


def moved_event(sequence: int, time_ms: int, other_ms: int) -> Message:
    """A message that lies at `time_ms` by the first decoder and at `other_ms` by the second."""
    header = {"time": time_ms, "server": "web1", "service": "web", "instance": other_ms, "sequence": sequence}
    body = io.BytesIO()
    body.write(b"\0" + MOVED_ID.to_bytes(4, "big"))
    fastavro.schemaless_writer(body, SCHEMA, {"header": header, "url": f"/{sequence}"})
    return Message(time_ms, None, body.getvalue())


def later_event(sequence: int, time_ms: int) -> Message:
    """A message that the first decoder rejects."""
    plain = event(sequence, time_ms)
    assert plain.value is not None
    return Message(time_ms, None, b"\0" + LATER_ID.to_bytes(4, "big") + plain.value[5:])


@dataclass
class Mended:
    """One warehouse and one log, whose decoder may be mended."""

    folder: Path
    log: MemoryLog = field(default_factory=MemoryLog)
    fixed: bool = False
    runs: int = 0

    def storage(self) -> Storage:
        return open_storage(str(self.folder))

    @property
    def topic(self) -> Topic:
        return Topic(self.storage(), TOPIC)

    def load(self, storage: Storage | None = None, **changes: Any) -> LoadResult:
        """Load what is new, as a run of its own."""
        self.runs += 1
        storage = storage or self.storage()
        run = load_run(self.log, storage, f"run {self.runs}", pin=self.pin(storage), **changes)
        return load_topic(run, TOPIC)

    def pin(self, storage: Storage) -> Any:
        """As `LoadContext.pin`: with the decoder that there is now."""

        def pin(topic: str, used: int) -> Pinned:
            folder = Topic(storage, topic)
            record = pinned(folder, used) or first_schema(folder, SCHEMA_ID, SCHEMA)
            return Pinned.from_schema(record, lambda: self.log, DECODERS[self.fixed].get)

        return pin

    def reload_run(
        self, storage: Storage | None = None, run_id: str = "again", progress: Any = no_progress
    ) -> ReloadRun:
        storage = storage or self.storage()
        run = load_run(self.log, storage, run_id, progress=progress, pin=self.pin(storage))
        return ReloadRun(context=run.context, reason="a test")
