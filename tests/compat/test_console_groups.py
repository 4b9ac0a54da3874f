"""Groups of command-line consumers, Java's and kcat's: members killed, the coordinator killed, offsets moved.

The console clients commit by time, so what was read and not yet committed may come again: nothing may be
missing, and once all has been read and committed nothing may come again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millrace_broker.groups.holding import coordinator_of
from tests.brokers import TestCluster
from tests.compat.groups import feed, fill
from tests.compat.java_console import tool
from tests.peers.kafka import kafka_tool_command
from tests.support import Process, start_for_the_test_run, wait_until

PARTITIONS = 8
SETTINGS = "group_min_session_timeout_ms = 500\n[log]\nflush_ms = 20\n"
TOPICS = ("java-kills", "kcat-kills")


def java(bootstrap: str, group: str, topic: str) -> list[str]:
    return kafka_tool_command(
        "ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--group",
        group,
        "--topic",
        topic,
        "--from-beginning",
        "--consumer-property",
        "session.timeout.ms=3000",
        "--consumer-property",
        "heartbeat.interval.ms=500",
        "--consumer-property",
        "auto.commit.interval.ms=200",
    )


def kcat(bootstrap: str, group: str, topic: str) -> list[str]:
    return [
        "kcat",
        "-b",
        bootstrap,
        "-q",
        "-u",
        "-X",
        "auto.offset.reset=earliest",
        "-X",
        "session.timeout.ms=3000",
        "-X",
        "heartbeat.interval.ms=500",
        "-X",
        "auto.commit.interval.ms=200",
        "-G",
        group,
        topic,
    ]


@dataclass
class Readers:
    """Members of one group, each a process that writes what it reads to a file."""

    folder: Path
    command: list[str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add(self, count: int) -> None:
        for _ in range(count):
            with open(self._file(len(self.processes)), "wb") as out:
                self.processes.append(
                    start_for_the_test_run(
                        self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL
                    )
                )

    def _file(self, number: int) -> Path:
        return self.folder / f"member-{number}"

    def values(self, number: int) -> list[str]:
        """Values that one member has read, without a line that it is still writing."""
        whole, _, _ = self._file(number).read_bytes().rpartition(b"\n")
        return whole.decode().split()

    def received(self, wanted: Collection[str]) -> None:
        """Wait until each of these values has been read by somebody."""

        def missing() -> set[str]:
            numbers = range(len(self.processes))
            return set(wanted) - {value for number in numbers for value in self.values(number)}

        try:
            wait_until("all is read", lambda: not missing(), timeout_s=60)
        except AssertionError as error:
            raise AssertionError(f"{error}: {sorted(missing(), key=int)[:10]} are missing") from None

    def all_read_more(self, numbers: Sequence[int]) -> None:
        """Wait until each of these members has read something new: it has a share of the partitions."""
        before = {number: len(self.values(number)) for number in numbers}
        wait_until(
            f"members {numbers} read",
            lambda: all(len(self.values(number)) > count for number, count in before.items()),
            timeout_s=60,
        )

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait(30)

    def close(self) -> None:
        """SIGTERM to all: they commit and leave."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)


@pytest.fixture(scope="module")
def cluster(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    """Broker 1 leads all partitions, so that 2 and 3 can be killed as coordinators."""
    folder = tmp_path_factory.mktemp("console-groups")
    made = TestCluster(start_for_module, "console-groups", folder, zookeeper, SETTINGS).start_brokers(1)
    with made.client() as client:
        for name in TOPICS:
            client.create_topic(name, PARTITIONS)
    return made.start_brokers(2, 3)


@pytest.fixture
def started() -> Iterator[list[Readers]]:
    """Readers to be killed when the test ends."""
    made: list[Readers] = []
    yield made
    for readers in made:
        for process in readers.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("command", "members"), [(java, 3), (kcat, 8)], ids=["java", "kcat"])
def test_members_and_the_coordinator_are_killed_and_nothing_is_missing(
    cluster: TestCluster,
    started: list[Readers],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    command: Callable[[str, str, str], list[str]],
    members: int,
) -> None:
    if command is java:
        request.getfixturevalue("needs_maven")
    topic = f"{command.__name__}-kills"
    names = (f"{command.__name__} group {number}" for number in range(1000))
    group = next(name for name in names if coordinator_of(name, (1, 2, 3)) == 2)
    readers = Readers(tmp_path, command(cluster.bootstrap, group, topic))
    started.append(readers)
    with feed(cluster.bootstrap, topic, PARTITIONS, per_second=200) as sent:
        readers.add(members)
        readers.all_read_more(range(members))
        readers.kill(0)
        readers.all_read_more(range(1, members))
        readers.received(list(sent))
        cluster.brokers[2].kill()
        readers.all_read_more(range(1, members))
        readers.add(1)
        readers.all_read_more([members])
        cluster.restart(2)
    readers.received(sent)
    readers.close()
    again = Readers(tmp_path / "again", command(cluster.bootstrap, group, topic))
    started.append(again)
    again.folder.mkdir()
    again.add(1)
    more = fill(cluster.bootstrap, topic, PARTITIONS, 80, first=1_000_000)
    again.received(more)
    assert set(again.values(0)) == set(more), "what was committed comes again"
    again.close()


def test_java_s_group_command_shows_moves_and_deletes(
    needs_maven: None, cluster: TestCluster, started: list[Readers], tmp_path: Path
) -> None:
    with cluster.client() as client:
        client.create_topic("administered", 2)
    values = fill(cluster.bootstrap, "administered", 2, 100)
    readers = Readers(tmp_path, java(cluster.bootstrap, "administered", "administered"))
    started.append(readers)
    readers.add(1)
    readers.received(values)

    def groups(*arguments: str) -> str:
        return tool(cluster.bootstrap, "ConsumerGroupCommand", *arguments)

    named = ("--group", "administered")
    shown = groups("--describe", *named, "--members")
    assert re.search(r"console-consumer-\S+ +/127.0.0.1 +console-consumer +2", shown)
    assert re.search(r"^administered +Stable", groups("--list", "--state"), re.MULTILINE)
    assert "administered" not in groups("--list", "--state", "Empty")
    refused = groups("--delete", *named)
    assert "The group is not empty" in refused
    refused = groups("--delete-offsets", *named, "--topic", "administered")
    assert "the consumer group is actively subscribed to it" in refused
    readers.close()
    described = groups("--describe", *named)
    rows = re.findall(r"administered +administered +(\d) +(\d+) +(\d+) +(\d+)", described)
    assert [(partition, current == end, lag) for partition, current, end, lag in rows] == [
        ("0", True, "0"),
        ("1", True, "0"),
    ], described
    moved = groups("--reset-offsets", *named, "--topic", "administered:1", "--to-earliest", "--execute")
    assert re.search(r"administered +1 +0\b", moved)
    again = Readers(tmp_path / "again", readers.command)
    started.append(again)
    again.folder.mkdir()
    again.add(1)
    again.received(values[1::2])
    assert set(again.values(0)) == set(values[1::2]), "only the partition that was moved"
    again.close()
    deleted = groups("--delete-offsets", *named, "--topic", "administered:1")
    assert re.search(r"administered +1 +Successful", deleted)
    rows = re.findall(r"^administered +administered +(\d)", groups("--describe", *named), re.MULTILINE)
    assert rows == ["0"]
    assert "successful" in groups("--delete", *named)
    assert "administered" not in groups("--list").splitlines()
