"""Topics of a resident loader: in turn in one process, or side by side on another engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace_audit.answer import NewestLoad
from millrace_warehouse.commands import following, load_context
from millrace_warehouse.commands.following import HERE, TURNS_BEHIND, Engine, FollowNumbers, follow_topics
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.load import resident
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.range_writer import LoadContext
from millrace_warehouse.load.task import RunTasks, write_cut
from millrace_warehouse.publish.catalog import CatalogError
from millrace_warehouse.requests import Load
from tests.support import WAIT_S
from tests.unit.warehouse.memory_log import START, MemoryLog, load_run, local_run

ELSEWHERE = Engine(run_tasks=local_run, cores=lambda: 1, is_here=False)


class Loader:
    """A resident loader of topics whose logs are in memory. It stops when each topic has a load."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **events: int) -> None:
        self.logs = {topic: MemoryLog(1, topic) for topic in events}
        for topic, count in events.items():
            self.logs[topic].append_events(0, [START + n for n in range(count)])
        self.loads = list[LoadResult]()
        self.first, self.stop = threading.Event(), threading.Event()
        self._folder = folder
        monkeypatch.setattr(following, "load_context", self._context)
        monkeypatch.setattr(following, "notes_on", lambda *_: [])

    @contextmanager
    def _context(
        self, request: Load, command: str, topic: Topic, run_tasks: RunTasks, **_: Any
    ) -> Iterator[LoadContext]:
        yield load_run(self.logs[topic.name], topic.storage, run_tasks=run_tasks, cut_bytes=1 << 20).context

    def run(self, engine: Engine) -> None:
        assert self.follow(engine) == []

    def follow(self, engine: Engine, auditor: str = "", live: bool | None = None) -> list[str]:
        request = Load(
            topics=[*self.logs],
            warehouse=str(self._folder),
            bootstrap="127.0.0.1:1",
            registry="http://127.0.0.1:1",
            follow=True,
            every_s=0.01,
            auditor=auditor,
            live=live,
        )
        return follow_topics(request, self.stop, FollowNumbers(), self._made, engine)

    def _made(self, load: LoadResult) -> None:
        self.loads.append(load)
        self.first.set()
        if {each.topic for each in self.loads} == {*self.logs}:
            self.stop.set()


def test_a_topic_on_another_engine_does_not_wait_for_the_tasks_of_the_other_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, waits = Loader(tmp_path, monkeypatch, Slow=10, Quick=10), list[bool]()

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        if function is write_cut and tasks[0].cut.range.topic == "Slow":
            waits.append(loader.first.wait(WAIT_S))
        return local_run(function, tasks)

    loader.run(Engine(run_tasks=run_tasks, cores=lambda: 1, is_here=False))
    assert [(load.topic, load.rows) for load in loader.loads] == [("Quick", 10), ("Slow", 10)]
    assert waits == [True]


@pytest.mark.parametrize(("engine", "advised"), [(HERE, ["Large"]), (ELSEWHERE, [])])
def test_the_log_names_once_each_topic_that_is_too_large_for_one_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: Engine,
    advised: list[str],
) -> None:
    loader = Loader(tmp_path, monkeypatch, Large=1_000, Small=10)
    log_bytes = len(loader.logs["Large"].partitions[0].log)
    monkeypatch.setattr(resident, "TURN_BYTES", log_bytes // (2 * TURNS_BEHIND))
    loader.run(engine)
    assert sum(load.rows for load in loader.loads) == 1_010
    advice = [record.getMessage() for record in caplog.records if "--engine spark" in record.msg]
    assert [text.partition(":")[0] for text in advice] == advised


def test_a_topic_whose_folder_cannot_be_compared_for_a_moment_is_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, compared = Loader(tmp_path, monkeypatch, Large=10), list[bool]()

    def compare(url: str, topic: Topic) -> list[str]:
        compared.append(True)
        if len(compared) <= 2:
            raise MillraceError("the storage does not answer")
        return []

    monkeypatch.setattr(following, "compare_with_auditor", compare)
    loader.run(HERE)
    assert [load.rows for load in loader.loads] == [10]
    assert len(compared) == 3


def test_a_topic_whose_folder_is_older_than_what_was_counted_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(tmp_path, monkeypatch, Large=10)
    counted = NewestLoad(load=3, sha256="0" * 64)
    monkeypatch.setattr(load_context, "newest_counted", lambda *_: counted)
    (failed,) = loader.follow(HERE, auditor="http://127.0.0.1:1")
    assert "was counted by the auditor and is gone" in failed
    assert loader.loads == []


def test_a_catalog_that_does_not_answer_takes_a_small_part_of_the_time_of_all_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(tmp_path, monkeypatch, Large=1_000, Small=10, Other=10)
    asked = list[float]()

    def connect(*_: Any) -> Any:
        asked.append(time.monotonic())
        time.sleep(0.3)  # its time limit
        raise CatalogError("the catalog does not answer")

    def made(load: LoadResult) -> None:
        loader.loads.append(load)
        loader.stop.set()

    log_bytes = len(loader.logs["Large"].partitions[0].log)
    monkeypatch.setattr(following, "connect", connect)
    monkeypatch.setattr(loader, "_made", made)
    monkeypatch.setattr(resident, "TURN_BYTES", log_bytes // 20)
    monkeypatch.setattr(resident, "SEAL_BYTES", log_bytes // 2)
    began = time.monotonic()
    assert loader.follow(HERE, live=True) == []
    assert sorted(load.topic for load in loader.loads) == ["Large", "Other", "Small"]
    assert 0 < 0.3 * len(asked) <= 0.6 + (time.monotonic() - began) / 4
