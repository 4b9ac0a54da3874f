"""Loads, hours, re-loads and expiry in any order, cut off at any moment; and what must be visible after each.

Two decoders read the same log: the second one, after a "fix", reads messages that the first rejects, and puts
some rows into another hour. What the table must show is worked out from the files of the loads themselves.
"""

from __future__ import annotations

import copy
import io
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from millrace_warehouse.history.editions import edition_folder, later_editions
from millrace_warehouse.table import revisions
from millrace_warehouse.table.expire import ExpireRun, expire_topic
from millrace_warehouse.table.merge import DirectMerge, merge_files
from millrace_warehouse.table.publish import HourlyRun, publish_hours, publish_late_hours

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_spark import tables
from millrace_warehouse.history.layout import load_numbers
from millrace_warehouse.history.manifest import Verdict
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.load.task import DirectSink, Source
from millrace_warehouse.load.writing import Pinned
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.memory_log import (
    HOUR,
    SCHEMA,
    SCHEMA_ID,
    START,
    TOPIC,
    MemoryLog,
    event,
    load_run,
    local_run,
    no_progress,
)

MOVED_ID, LATER_ID = 8, 9
HOURS = [f"2015-05-17T{hour}" for hour in range(10, 14)]
Rows = Counter[tuple[str, int]]
"""(hour, sequence) -> how often."""


class CutOff(BaseException):
    """The process has ended here; nothing after it is done, no clean-up either."""


class MortalFilesystem(LocalFilesystem):
    """A warehouse whose process ends at the n-th change it makes to it."""

    def __init__(self, root: str, changes: int | None = None) -> None:
        super().__init__(root)
        self._left = changes

    @staticmethod
    def _sync_one(path: Path) -> None:
        """Nothing: the process ends here, not the machine."""

    def _change(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise CutOff

    def write(self, path: str, content: bytes) -> None:
        self._change()
        super().write(path, content)

    def create(self, path: str, content: bytes) -> bool:
        self._change()
        return super().create(path, content)

    def make_folder(self, folder: str) -> None:
        self._change()
        super().make_folder(folder)

    def gather(self, source: str, target: str, paths: Iterable[str]) -> None:
        for path in paths:
            self._change()
            super().gather(source, target, [path])

    def move(self, source: str, target: str) -> bool:
        self._change()
        return super().move(source, target)

    def delete(self, path: str) -> None:
        for name, _ in self.files(path):
            self._change()
            super().delete(f"{path}/{name}")
        self._change()
        super().delete(path)


def _swapped(names: Mapping[str, str]) -> dict[str, Any]:
    header = SCHEMA["fields"][0]["type"]
    fields = [{**field, "name": names.get(field["name"], field["name"])} for field in header["fields"]]
    named = {
        field["name"]: {k: v for k, v in original.items() if k != "name"}
        for field, original in zip(fields, header["fields"], strict=True)
    }
    types = {field["name"]: field["type"] for field in header["fields"]}
    fields = [{"name": name, "type": types[name]} for name in named]
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
class Scenario:
    """One warehouse, one log, and what was done to them."""

    folder: Path
    random: random.Random
    log: MemoryLog = field(default_factory=MemoryLog)
    fixed: bool = False
    done: list[str] = field(default_factory=list)
    editions: dict[tuple[int, int], Rows] = field(default_factory=dict)
    """The rows of every edition that was ever visible."""
    counted: dict[int, int] = field(default_factory=dict)
    """Load -> editions that the auditor was told of."""
    runs: int = 0

    def filesystem(self, changes: int | None = None) -> MortalFilesystem:
        """The warehouse, for a process that ends at so many changes to it."""
        return MortalFilesystem(str(self.folder), changes)

    def copied(self, folder: Path) -> Scenario:
        """The same scenario in a folder of its own."""
        shutil.copytree(self.folder, folder)
        twin = copy.deepcopy(self)
        twin.folder = folder
        return twin

    def step(self) -> None:
        """Do one thing, perhaps cut off in the middle; then look at everything."""
        actions: dict[Callable[[LocalFilesystem], object], int] = {
            self.load: 3,
            self.hours: 3,
            self.late: 2,
            self.reload: 3,
            self.expire: 3,
            self.fix: int(not self.fixed),
        }
        (action,) = self.random.choices(list(actions), list(actions.values()))
        most = 4 if action == self.expire else 15
        cut = self.random.choice([None, None, self.random.randint(1, most)])
        self.done.append(f"{action.__name__} {cut or ''}")
        try:
            action(self.filesystem(cut))
        except CutOff:
            self.done[-1] += " cut off"
        except MillraceError as error:
            if "no load of" not in str(error):
                raise AssertionError(f"{error} after {self.done}") from error
        self.look()

    def load(self, fs: LocalFilesystem) -> None:
        for _ in range(self.random.randint(1, 2)):
            times = [START + self.random.randrange(4 * HOUR) for _ in range(self.random.randint(2, 9))]
            messages = []
            for time_ms in times:
                kind = self.random.randrange(4)
                if kind == 0:
                    messages.append(
                        moved_event(self.log.sequence, time_ms, START + self.random.randrange(4 * HOUR))
                    )
                elif kind == 1:
                    messages.append(later_event(self.log.sequence, time_ms))
                else:
                    messages.append(event(self.log.sequence, time_ms))
                self.log.sequence += 1
            self.log.append(self.random.randrange(2), messages)
        self._load(fs)

    def _load(self, fs: LocalFilesystem) -> None:
        self.runs += 1
        load_topic(
            load_run(
                self.log, self.folder, f"run {self.runs}", fs=fs, pin=self.pin, sink=DirectSink(fs, local_run)
            ),
            TOPIC,
        )

    def pin(self, *_: object) -> Pinned:
        return Pinned(Source(lambda: self.log, DECODERS[self.fixed].get, SCHEMA), SCHEMA_ID)

    def hourly_run(self, fs: LocalFilesystem) -> HourlyRun:
        merge = DirectMerge(fs, lambda tasks: local_run(tasks, merge_files))
        return HourlyRun(
            fs=fs,
            merge=merge,
            verdict_of=lambda *_: Verdict(verdict="unasked"),
            run_id=uuid.uuid4().hex,
            progress=no_progress,
        )

    def hours(self, fs: LocalFilesystem) -> None:
        hours = self.random.sample(HOURS, self.random.choice([1, 2, 4, 4]))
        publish_hours(self.hourly_run(fs), TOPIC, hours, also_empty=self.random.choice([False, True]))

    def late(self, fs: LocalFilesystem) -> None:
        publish_late_hours(self.hourly_run(fs), TOPIC)

    def reload(self, fs: LocalFilesystem) -> None:
        if loads := load_numbers(fs, TOPIC):
            self.runs += 1
            reload_topic(self.reload_run(fs), TOPIC, sorted(self.random.sample(loads, min(2, len(loads)))))

    def reload_run(self, fs: LocalFilesystem) -> ReloadRun:
        run = load_run(
            self.log,
            self.folder,
            f"run {self.runs}",
            fs=fs,
            pin=self.pin,
            sink=DirectSink(fs, local_run),
            publish_counts=lambda editions: self.counted.update({editions[0].load: len(editions)}),
        )
        return ReloadRun(writing=run.writing, reason="a test")

    def expire(self, fs: LocalFilesystem) -> None:
        expire_topic(ExpireRun(fs=fs, older_than_s=-1, reader_grace_s=-1, progress=no_progress), TOPIC)

    def fix(self, _: LocalFilesystem) -> None:
        self.fixed = True

    def look(self) -> None:
        """Every published hour shows exactly the rows of the editions it says it was made from."""
        fs = LocalFilesystem(str(self.folder))
        self._remember_editions(fs)
        expected: Rows = Counter()
        for revision in revisions.newest_revisions(fs, TOPIC):
            hour = revision.manifest.hour
            for part in revision.manifest.loads:
                rows = self.editions[part.load, part.edition]
                expected.update({key: n for key, n in rows.items() if key[0] == hour})
        assert self.visible() == expected, self.done
        assert max(expected.values(), default=1) == 1, self.done

    def _remember_editions(self, fs: LocalFilesystem) -> None:
        later = later_editions(fs, TOPIC)
        for load in load_numbers(fs, TOPIC):
            for edition in (1, *later.get(load, ())):
                if (load, edition) not in self.editions:
                    path = self.folder / TOPIC / edition_folder(load, edition)
                    self.editions[load, edition] = rows_in(path.glob("date=*/hour=*/*.parquet"))

    def visible(self) -> Rows:
        """What a reader of the table sees."""
        try:
            table = tables.dataset(str(self.folder), TOPIC).to_table()
        except MillraceError:
            return Counter()  # nothing is published yet
        dates, hours = table["date"].to_pylist(), table["hour"].to_pylist()
        sequences = [row["sequence"] for row in table["header"].to_pylist()]
        return Counter(
            (f"{date}T{hour:02}", sequence)
            for date, hour, sequence in zip(dates, hours, sequences, strict=True)
        )

    def problems(self) -> list[str]:
        """What `verify` finds."""
        reports = verify(self.filesystem(), TOPIC, None, no_progress)
        return [problem for report in reports for problem in report.problems]

    def settle(self) -> None:
        """Let every run end; then the table shows all that was ever loaded, as its newest edition has it."""
        fs = self.filesystem()
        self.load(fs)
        publish_hours(self.hourly_run(fs), TOPIC, HOURS)
        self.look()
        self.expire(fs)
        self.look()
        newest = dict(sorted(self.editions))
        everything: Rows = Counter()
        for load, edition in newest.items():
            everything.update(self.editions[load, edition])
        assert self.visible() == everything, self.done
        assert self.problems() == [], self.done
        self._reload_everything(fs)

    def _reload_everything(self, fs: LocalFilesystem) -> None:
        """After the fix and one re-load of all, nothing is rejected and every event is there once."""
        self.fixed = True
        self.runs += 1
        reload_topic(self.reload_run(fs), TOPIC, load_numbers(fs, TOPIC))
        publish_late_hours(self.hourly_run(fs), TOPIC)
        publish_hours(self.hourly_run(fs), TOPIC, HOURS)
        self.look()
        assert Counter(s for _, s in self.visible().elements()) == Counter(range(self.log.sequence)), (
            self.done
        )
        assert self.counted == {load: later[-1] for load, later in later_editions(fs, TOPIC).items()}
        reports = verify(fs, TOPIC, None, no_progress)
        assert self.problems() == [], self.done
        assert not any("came late" in note for report in reports for note in report.notes), self.done


def rows_in(paths: Iterable[Path]) -> Rows:
    """Rows of some files of a load, by hour folder."""
    rows: Rows = Counter()
    for path in paths:
        hour = f"{path.parent.parent.name[5:]}T{path.parent.name[5:]}"
        for row in pq.read_table(path, partitioning=None, columns=["header"])["header"].to_pylist():
            rows[hour, row["sequence"]] += 1
    return rows
