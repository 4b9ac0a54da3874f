"""Scene of one case: a place of its own, copies of its stores, and a watch on the auditor's verdicts.

Knows how a store is copied and put back, and nothing of what any part must then do.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace_audit.answer import Verdict, Window
from tests.support import run_millrace, wait_until
from tests.trials.faultaudit.place import Place
from tests.trials.faultaudit.stage import Missed, Says, Stage

TOPIC, BESIDE = "restored", "beside"
"""The case's topic, and another one."""
WELL = Says(verdict=Verdict.COMPLETE)
EVENTS = 60
"""Events of a stage's traffic, both windows and datacenters together."""
HOUR = "2015-05-17T10"
BROKERS = 3
PATIENCE_S = 2
WATCH_S = 0.1


class Lost(AssertionError):
    """An acknowledged message is gone although one replica had it."""


class Wrong(AssertionError):
    """An hour is called `complete` or `carried`, or a message is taken for another one, and it is not."""


class FalseAlarm(AssertionError):
    """A message is called missing, or an hour incomplete, and nothing is missing."""


@dataclass(slots=True)
class Copy:
    """An older state of a folder, or of a database in SQLite."""

    origin: Path
    content: Path
    scene: Scene

    def put_back(self) -> None:
        """Let the copy take the store's place; AssertionError when the copy lacks nothing."""
        self.count()
        if self.content.is_dir():
            shutil.rmtree(self.origin)
            shutil.copytree(self.content, self.origin)
        else:
            for file in self.origin.parent.glob(f"{self.origin.name}*"):
                file.unlink()
            shutil.copy(self.content, self.origin)

    def count(self) -> None:
        """Count the copy as put back; AssertionError when it lacks nothing."""
        assert self.lacks(), f"the copy of {self.origin} lacks nothing: the case shows nothing"
        self.scene.restores += 1

    def lacks(self) -> Sequence[str]:
        """Files that the store has and the copy does not have so; of a database its rows."""
        if self.content.is_dir():
            files = (path.relative_to(self.origin) for path in self.origin.rglob("*") if path.is_file())
            return [str(file) for file in files if not _are_equal(self.content / file, self.origin / file)]
        now, then = _rows(self.origin), _rows(self.content)
        return sorted(now - then)


def _are_equal(copy: Path, file: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == file.read_bytes()


def _rows(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return set(connection.iterdump())


@dataclass(slots=True)
class Watch:
    """Answers of the auditor while it was watched."""

    answers: list[Window] = field(default_factory=list)

    def check_no_alarm(self) -> None:
        """FalseAlarm when a window was ever called incomplete."""
        assert self.answers, "the auditor never answered"
        for window in self.answers:
            if window.verdict == Verdict.INCOMPLETE:
                raise FalseAlarm(f"nothing is missing, and the auditor said: {window}")


@dataclass(slots=True)
class Scene:
    """Everything that a case needs."""

    place: Place
    restores: int = 0
    """Copies that were put back."""
    _copies: int = 0
    _stages: Mapping[str, Stage] = field(init=False)

    @property
    def stage(self) -> Stage:
        """Traffic on the case's topic, and the verdicts on it."""
        return self._stages[TOPIC]

    @property
    def beside(self) -> Stage:
        """The same of the other topic."""
        return self._stages[BESIDE]

    def __post_init__(self) -> None:
        self._stages = {topic: Stage(self.place, topic) for topic in (TOPIC, BESIDE)}

    def copy(self, origin: Path) -> Copy:
        """Copy a folder or a database as it is now; whoever writes to it may go on."""
        self._copies += 1
        content = self.place.folder / "copies" / str(self._copies) / origin.name
        content.parent.mkdir(parents=True)
        if origin.is_dir():
            _copy_folder(origin, content)
        else:
            with closing(sqlite3.connect(origin)) as source, closing(sqlite3.connect(content)) as target:
                source.backup(target)
        return Copy(origin, content, self)

    # Verdicts

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """Ask the auditor again and again until the block ends; it may be away meanwhile."""
        watch, stop = Watch(), threading.Event()

        def ask() -> None:
            while not stop.wait(WATCH_S):
                with suppress(MillraceError):
                    watch.answers += self.stage.ask()

        thread = threading.Thread(target=ask, name="watch", daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            stop.set()
            thread.join()

    def await_complete(self) -> None:
        """Until both windows are complete, and stay so; FalseAlarm when they do not become so."""
        try:
            self.stage.await_says(WELL)
        except Missed as missed:
            raise FalseAlarm(str(missed)) from None

    def check_named(self, process: str, pattern: str) -> None:
        """Wait until the process says so; AssertionError with its output when it does not."""

        def said() -> bool:
            return re.search(pattern, self.place.processes[process].output) is not None

        try:
            wait_until(f"{process} says {pattern!r}", said)
        except AssertionError as error:
            output = self.place.processes[process].output
            raise AssertionError(f"{error}; it said: {output[-2000:]}") from None

    # Commands

    def publish_proven(self) -> Sequence[Mapping[str, Any]]:
        """Changes of the hours that `publish --proven` publishes; none when it refuses the topic."""
        auditor = ("--auditor", self.place.auditor_url)
        done = run_millrace(
            "publish", TOPIC, "--proven", "--warehouse", str(self.place.warehouse), *auditor, "--json"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return [change for each in json.loads(done.stdout or "[]") for change in each.get("changes", ())]

    def refused(self, *words: str) -> str:
        """Run a command that must be refused and return its sentence; Wrong if it is not refused."""
        done = run_millrace(*words)
        if done.returncode == 0:
            raise Wrong(f"`millrace {' '.join(words)}` did it, and said: {done.stdout}")
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


def _copy_folder(origin: Path, content: Path) -> None:
    """Files come and go while the folder's owner runs: what is gone again is not in the copy."""
    for path in [origin, *sorted(origin.rglob("*"))]:
        target = content / path.relative_to(origin)
        with suppress(FileNotFoundError):
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                shutil.copy2(path, target)
