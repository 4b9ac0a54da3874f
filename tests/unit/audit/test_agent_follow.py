"""Followed files: every whole line is taken once, whatever becomes of the file and of the agent."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_agent import follow, intake
from millrace_agent.follow import Follower
from millrace_agent.intake import Intake, Unknown
from millrace_agent.spool import Spool
from millrace_audit.reports.messages import schema_file
from millrace_registry.client import RegisteredVersion, UnknownSchema
from millrace_registry.subjects import Subjects

START = 1_431_856_800_000
FIELDS = {"clientAddress": "c", "method": "GET", "protocol": "HTTP/1.1", "status": 200}


class Registry:
    """Has PageView, unless it is told otherwise."""

    url = "http://registry"

    def latest(self, subject: str, **_: Any) -> RegisteredVersion:
        return RegisteredVersion(1, 1, schema_file("PageView"))


class Topics:
    missing = False

    def check(self, topic: str) -> None:
        if self.missing:
            raise Unknown(f"no topic {topic}")


class Agent:
    """The part of an agent that follows a file, over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "app.log"
        self.topics = Topics()
        self.spool: Spool | None = None
        self.start()

    def start(self) -> None:
        self.stop()
        self.spool = Spool(self.folder / "spool", 1 << 30)
        taking = Intake(Registry(), self.topics, self.spool, Subjects.parse(["t=PageView"]))  # type: ignore[arg-type]
        self.follower = Follower(self.spool, taking, {self.log: "t"})

    def stop(self) -> None:
        if self.spool is not None:
            self.follower.close()
            self.spool.close()
            self.spool = None

    def take(self, steps: int = 20) -> None:
        for _ in range(steps):
            self.follower.step()

    def urls(self) -> list[str]:
        assert self.spool is not None
        found = self.spool.waiting("t", most=100_000, most_bytes=1 << 30)
        return [one.body.partition(b"GET")[2][1:].split(b"\x10HTTP")[0].decode() for _, one in found]

    def write(self, *urls: str, end: str = "\n") -> None:
        with self.log.open("a") as file:
            file.write("".join(line(url) + "\n" for url in urls[:-1]) + line(urls[-1]) + end)


def line(url: str) -> str:
    return json.dumps({"time": START, "event": {**FIELDS, "url": url}})


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(follow, "ROTATED_S", 0.0)
    made = Agent(tmp_path)
    yield made
    made.stop()


def test_whole_lines_are_taken_once_over_restarts(agent: Agent) -> None:
    agent.take()
    agent.write("/1", "/2")
    agent.take()
    agent.write("/3", "/half", end="")
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3"]
    agent.start()
    with agent.log.open("a") as file:
        file.write("\n" + line("/5") + "\n")
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3", "/half", "/5"]


def test_a_file_that_is_renamed_is_read_to_its_end_and_then_the_new_one(agent: Agent) -> None:
    agent.write("/1")
    agent.take()
    agent.write("/2")
    agent.log.rename(agent.log.with_name("app.log.1"))
    agent.write("/3")
    with agent.log.with_name("app.log.1").open("a") as file:
        file.write(line("/late") + "\n" + line("/unended"))
    agent.take()
    assert agent.urls() == ["/1", "/2", "/late", "/unended", "/3"]


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_was_quiet_for_long_is_watched_when_it_is_renamed_like_any_other(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(follow, "ROTATED_S", 2.0)
    agent.write("/1")
    an_hour_ago = time.time() - 3600
    os.utime(agent.log, (an_hour_ago, an_hour_ago))
    agent.take()
    with agent.log.open("a") as writer:  # which has not been told yet that its file has another name
        agent.log.rename(agent.log.with_name("app.log.1"))
        agent.log.touch()
        if again:
            agent.start()
        agent.take()
        writer.write(line("/2") + "\n")
    agent.write("/3")
    monkeypatch.setattr(follow, "ROTATED_S", 0.0)
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3"]


def test_files_that_were_renamed_one_behind_the_other_while_no_agent_ran_are_all_read(agent: Agent) -> None:
    agent.write("/1")
    agent.take()
    agent.write("/2")
    agent.stop()
    for number in range(3, 6):
        for old in (2, 1):
            if (path := agent.log.with_name(f"app.log.{old}")).exists():
                path.rename(agent.log.with_name(f"app.log.{old + 1}"))
        agent.log.rename(agent.log.with_name("app.log.1"))
        pause_for_another_mtime(agent.folder)
        agent.write(f"/{number}")
    agent.log.with_name("app.log.old.gz").write_text("no rotation")
    agent.log.with_name("app.log-2025").mkdir()
    agent.log.with_name("app.log.lock").write_text("no rotation")
    agent.start()
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3", "/4", "/5"]


def test_files_are_read_on_after_a_file_that_was_compressed_while_no_agent_ran(agent: Agent) -> None:
    agent.write("/0")
    agent.take()
    agent.log.rename(agent.log.with_name("app.log.3"))
    pause_for_another_mtime(agent.folder)
    agent.write("/1")
    agent.take()
    agent.stop()
    agent.log.rename(agent.log.with_name("app.log.2"))
    pause_for_another_mtime(agent.folder)
    agent.write("/2")
    agent.log.rename(agent.log.with_name("app.log.1"))
    pause_for_another_mtime(agent.folder)
    agent.write("/3")
    agent.log.with_name("app.log.2").rename(agent.log.with_name("app.log.2.gz"))
    agent.start()
    agent.take()
    assert agent.urls() == ["/0", "/1", "/2", "/3"]


def test_a_file_that_was_moved_to_another_disk_is_read_on(agent: Agent) -> None:
    agent.write("/1", "/2")
    agent.take()
    agent.stop()
    moved = agent.folder / "moved"
    shutil.copy2(agent.log, moved)
    moved.replace(agent.log)
    agent.start()
    agent.write("/3")
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3"]


def test_a_file_that_was_begun_and_not_read_before_it_was_moved_is_read(agent: Agent) -> None:
    for number in (1, 2):
        agent.write(f"/{number}")
        agent.take(1 if number == 1 else 0)
        agent.log.rename(agent.log.with_name(f"app.log.{3 - number}"))
        pause_for_another_mtime(agent.folder)
    agent.log.touch()
    agent.take(1)
    assert agent.urls() == ["/1"]
    agent.stop()
    moved = agent.folder / "moved"
    shutil.copytree(agent.folder, moved, ignore=lambda _, names: [n for n in names if "app.log" not in n])
    for path in moved.iterdir():  # only now: a copy could get the inode of a file that was replaced
        path.replace(agent.folder / path.name)
    agent.start()
    agent.take()
    assert agent.urls() == ["/1", "/2"]


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_is_copied_and_truncated_is_read_on_in_its_copy(agent: Agent, again: bool) -> None:
    agent.write("/1", "/2")
    agent.take()
    for number in (3, 5):
        agent.write(f"/{number}")
        for old in (2, 1):
            if (path := agent.log.with_name(f"app.log.{old}")).exists():
                path.rename(agent.log.with_name(f"app.log.{old + 1}"))
        shutil.copy(agent.log, agent.log.with_name("app.log.1"))
        pause_for_another_mtime(agent.folder)
        agent.log.write_text("")
        agent.write(f"/{number + 1}")
    if again:
        agent.start()
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3", "/4", "/5", "/6"]


def pause_for_another_mtime(folder: Path) -> None:
    """Wait until a file that is written now is newer than the others: a file system's clock has ticks."""
    newest = max(path.stat().st_mtime_ns for path in folder.glob("app.log*"))
    probe = folder / "probe"
    probe.write_text("")
    while probe.stat().st_mtime_ns <= newest:
        probe.write_text("")


def test_files_of_the_same_time_are_read_in_the_order_of_their_names(agent: Agent) -> None:
    agent.write("/1")
    agent.take()
    agent.stop()
    for number in (2, 3):
        if (older := agent.log.with_name("app.log.1")).exists():
            older.rename(agent.log.with_name("app.log.2"))
        agent.log.rename(older)
        agent.write(f"/{number}")
    for path in agent.folder.glob("app.log*"):
        os.utime(path, (START / 1000, START / 1000))
    agent.start()
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3"]


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_is_truncated_is_read_from_its_beginning(agent: Agent, again: bool) -> None:
    agent.write("/1", "/2", "/3")
    agent.take()
    if again:
        agent.start()
    agent.log.write_text("")
    agent.write("/4")
    agent.take()
    agent.log.write_text("")
    agent.write("/5", "/6", "/7", "/8")  # longer than what was there
    agent.take()
    assert agent.urls() == ["/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8"]


def test_lines_that_are_no_events_are_left_out_and_named(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.write("/1")
    with agent.log.open("a") as file:
        file.write("nonsense\n\n" + json.dumps({"time": START, "event": {"url": 1}}) + "\n")
    agent.write("/2")
    agent.take()
    assert agent.urls() == ["/1", "/2"]
    (one,) = agent.follower.files
    assert one.refused == 2
    at = len(line("/1")) + 1
    assert f"2 lines are no events, the first at byte {at}: it is no JSON" in caplog.text


def test_a_line_of_any_length_is_passed_over(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BLOCK_BYTES", 1000)
    agent.write("/1")
    for length in (999, 1000, 1001, 2000, 2500, 5000):
        with agent.log.open("a") as file:
            file.write("x" * length + "\n")
        agent.write(f"/{length}")
    agent.write("/end")
    agent.take(100)
    assert agent.urls() == ["/1", "/999", "/1000", "/1001", "/2000", "/2500", "/5000", "/end"]
    assert agent.follower.files[0].refused == 6


def test_a_topic_whose_lines_are_not_all_taken_is_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TAKE_BYTES", 100)
    agent.write("/1", "/2", "/3")
    assert agent.follower.behind() == {"t"}
    for taken in range(1, 4):
        agent.take(1)
        assert len(agent.urls()) == taken
        assert agent.follower.behind() == {"t"}
    agent.take(1)
    assert agent.follower.behind() == set()
    agent.topics.missing = True
    agent.start()
    agent.follower._intake._present.clear()
    agent.write("/4")
    agent.take(2)
    assert agent.follower.troubles
    assert agent.follower.behind() == {"t"}


def test_lines_wait_while_their_topic_is_not_there(agent: Agent) -> None:
    agent.topics.missing = True
    agent.write("/1")
    agent.take()
    assert agent.urls() == []
    assert agent.follower.troubles == [f"file {agent.log}: no topic t"]
    assert agent.follower.caught_up() == 0.0, "or its windows would be closed"
    agent.topics.missing = False
    agent.take()
    assert (agent.urls(), agent.follower.troubles) == (["/1"], [])
    assert agent.follower.caught_up() > 0.0


def test_no_line_is_taken_for_no_event_because_the_schema_goes_while_lines_are_read(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def latest(*_: object, **__: object) -> RegisteredVersion:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise UnknownSchema("no subject PageView")
        return RegisteredVersion(1, 1, schema_file("PageView"))

    monkeypatch.setattr(Registry, "latest", latest)
    monkeypatch.setattr(intake, "SUBJECT_AGE_S", 0.0)  # what is known of the subject is too old at every look
    urls = [f"/{n}" for n in range(10)]
    agent.write(*urls)
    agent.take()
    for url in urls:
        agent.write(url)
        agent.take()
    assert agent.urls() == urls + urls
    assert agent.follower.files[0].refused == 0


def test_more_than_one_transaction_holds_is_taken_in_several(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TAKE_BYTES", 1000)
    urls = [f"/{n}" for n in range(100)]
    agent.write(*urls)
    agent.take(1)
    assert 0 < len(agent.urls()) < 20
    agent.take(100)
    assert agent.urls() == urls


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["write", "half", "take", "start", "rotate"]), max_size=25), st.integers())
def test_whatever_happens_every_line_is_taken_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, story: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    agent = Agent(tmp_path_factory.mktemp("story"))
    agent.log.touch()
    agent.take(1)
    written: list[str] = []
    rotated, begun = 0, False
    before, follow.ROTATED_S = follow.ROTATED_S, 0.0
    try:
        for step in [*story, "write"]:
            if step == "take":
                agent.take(chance.randrange(1, 4))
            elif step == "start":
                agent.start()
            elif step == "rotate" and agent.log.exists() and not begun:
                rotated += 1
                agent.log.rename(agent.log.with_name(f"app.log.{rotated:04}"))
                pause_for_another_mtime(agent.folder)
            elif step in ("write", "half"):
                text = line(f"/{len(written)}") + "\n"
                with agent.log.open("a") as file:
                    if begun:
                        file.write(text[20:])
                    else:
                        file.write(text if step == "write" else text[:20])
                begun = step == "half" and not begun
                if not begun:
                    written.append(f"/{len(written)}")
        if begun:
            with agent.log.open("a") as file:
                file.write(line(f"/{len(written)}")[20:] + "\n")
            written.append(f"/{len(written)}")
        agent.take(4 * rotated + 10)
        assert agent.urls() == written
    finally:
        follow.ROTATED_S = before
        agent.stop()
