"""A topic with members in its rows, some of whom are erased; and a search of every byte that is left."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq

from millrace_warehouse.context import Context, quiet
from millrace_warehouse.erase.erasing import EraseResult, erase_topic
from millrace_warehouse.history.manifest import HourVerdict
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.requests import Erase
from millrace_warehouse.storage import open_storage
from tests.counted import Counted
from tests.published import Warehouse
from tests.unit.warehouse.memory_log import (
    HOUR,
    SCHEMA,
    SCHEMA_ID,
    START,
    TOPIC,
    MemoryLog,
    event,
    load_run,
    with_field,
)

TEN, ELEVEN, TWELVE = (f"2015-05-17T{hour}" for hour in (10, 11, 12))
MEMBER = 7_311_987_654_321_012_345
"""A member whose eight bytes occur nowhere by accident."""
OTHER = 42
WITH_MEMBER = 8
MEMBERS = with_field("memberId", ["null", "long"], None)
UNKNOWN = 9
"""A schema that nobody has registered: what is written with it is rejected."""
NAME = "/jane-doe"
"""The address of the member's own page."""


def complete(_topic: str, _hour: str) -> HourVerdict:
    return HourVerdict(verdict="complete")


@dataclass(frozen=True)
class Scene(Warehouse):
    """A warehouse of a log in memory. Schema 7 has no member, schema 8 has."""

    log: MemoryLog = field(default_factory=MemoryLog)
    runs: list[str] = field(default_factory=list)

    def send(self, member: int | None, hour: int = 0, partition: int = 0, times: int = 1) -> None:
        """One batch of events of a member, in an hour from ten on."""
        number = self.log.sequence
        self.log.sequence += times
        self.log.append(
            partition,
            [
                event(n, START + hour * HOUR + n, schema=(WITH_MEMBER, MEMBERS), memberId=member)
                for n in range(number, number + times)
            ],
        )

    def send_old(self, hour: int = 0) -> None:
        """An event that was written before there were members."""
        self.log.append(0, [event(self.log.sequence, START + hour * HOUR)])
        self.log.sequence += 1

    def send_unknown(self, times: int = 1) -> None:
        """Events of the member, with her name in them, that a load rejects."""
        number = self.log.sequence
        self.log.sequence += times
        self.log.append(
            0,
            [
                event(n, START + n, schema=(UNKNOWN, MEMBERS), memberId=MEMBER, url=NAME)
                for n in range(number, number + times)
            ],
        )

    def load_new(self, **changes: Any) -> Any:
        self.runs.append("")
        return load_topic(load_run(self.log, self.storage, f"run {len(self.runs)}", **changes), TOPIC)

    def reload(self, *loads: int, **changes: Any) -> Any:
        self.runs.append("")
        context = load_run(self.log, self.storage, f"again {len(self.runs)}", **changes).context
        return reload_topic(ReloadRun(context=context, reason="a test"), TOPIC, loads)

    def erase(
        self, where: str = f"memberId = {MEMBER}", *, until: str | None = None, **words: Any
    ) -> EraseResult:
        context = Context(storage=self.storage, catalog=self.catalog, progress=words.pop("progress", quiet))
        verdict_of = words.pop("verdict_of", complete)
        request = Erase(
            **{
                "topic": TOPIC,
                "warehouse": str(self.folder),
                "where": where,
                "reason": "request 4711",
                **words,
            }
        )
        return erase_topic(context, request, Counted(self.storage, verdict_of), lambda: until)

    def members(self) -> list[int | None]:
        """Return the member of every row that a reader of the table gets, sorted."""
        rows = self.catalog.load_table(table_identifier(TOPIC)).scan().to_arrow()
        return sorted(rows["memberId"].to_pylist(), key=str)


def scene(folder: Path) -> Iterator[Scene]:
    folder.mkdir(exist_ok=True)
    storage = open_storage(str(folder))
    with closing(connect(storage)) as catalog:
        made = Scene(folder, storage, catalog)
        made.log.schemas = {SCHEMA_ID: SCHEMA, WITH_MEMBER: MEMBERS}
        yield made


def holding(folder: Path, value: int | str) -> list[str]:
    """Every file below a folder that has the value in it: as text, as bytes, packed, in rows or in bounds."""
    found = []
    text = str(value).encode()
    raw = value.to_bytes(8, "little") if isinstance(value, int) else text
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        unpacked = [content]
        if content[:4] == b"PAR1":
            with pq.ParquetFile(io.BytesIO(content)) as file:
                unpacked.append(repr(file.read().to_pylist()).encode())
                for group in range(file.num_row_groups):
                    unpacked.append(repr(file.metadata.row_group(group).to_dict()).encode())
        elif content[:3] == b"Obj":
            records: list[Mapping[str, Any]] = list(fastavro.reader(io.BytesIO(content)))  # type: ignore[arg-type]
            unpacked += [each for record in records for each in _bytes_in(record)]
        if any(text in each or raw in each for each in unpacked):
            found.append(str(path.relative_to(folder)))
    return found


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _bytes_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _bytes_in(each)
    else:
        yield str(value).encode()


def fill(scene: Scene) -> None:
    """Load 1 has rows of ten and eleven, three of them the member's. Load 2 has ten and twelve, and one."""
    scene.send(MEMBER, times=2)
    scene.send(OTHER, times=3)
    scene.send(MEMBER, hour=1, partition=1)
    scene.send(None, hour=1)
    scene.send_old()
    scene.load_new()
    scene.send(OTHER, hour=2)
    scene.send(MEMBER, hour=0)
    scene.load_new()
