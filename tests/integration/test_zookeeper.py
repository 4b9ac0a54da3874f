"""The embedded ZooKeeper: real process, real errors, nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from millrace.zookeeper import embedded
from millrace.zookeeper.embedded import answers
from tests.brokers import free_port
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]


def java_children(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(child) for child in found.stdout.split()]


def test_it_answers_when_it_says_so_keeps_its_data_and_ends_with_sigterm(
    start: Start, tmp_path: Path
) -> None:
    first = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path / "data"))
    address = first.ready()
    host, port = address.split(":")
    assert host == "127.0.0.1"
    client = KazooClient(hosts=address)
    client.start()
    client.create("/kept", b"value")
    client.stop()
    client.close()
    (java,) = java_children(first.pid)
    assert first.stop() == 0
    assert not Path(f"/proc/{java}").exists()

    second = start("zookeeper", "--port", port, "--data-dir", str(tmp_path / "data"))
    client = KazooClient(hosts=second.ready())
    client.start()
    assert client.get("/kept")[0] == b"value"
    client.stop()
    client.close()


def fill(address: str, megabytes: int) -> int:
    """Create nodes of a megabyte together, until so many or until it ends; how many there are."""
    client = KazooClient(hosts=address, timeout=60)
    client.start()
    made = 0
    with suppress(KazooException):
        while made < megabytes:
            client.create(f"/n{made}", bytes(900_000))
            made += 1
    client.stop()
    client.close()
    return made


def test_data_that_outgrows_the_heap_ends_it_with_a_sentence_and_a_larger_heap_takes_it(
    start: Start, tmp_path: Path
) -> None:
    small = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path), "--heap-mb", "32")
    made = fill(small.ready(), 64)
    assert made < 64
    assert small.wait() == 1
    assert "has outgrown its heap of 32 MB: give --heap-mb more" in small.lines[-1]
    assert fill(start("zookeeper", "--port", "0", "--data-dir", str(tmp_path / "default")).ready(), 64) == 64


def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_SECONDS", "SILENT_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(embedded, name, 0.2)
    with embedded.ZooKeeper.start(tmp_path) as server:
        os.kill(server._process.pid, signal.SIGSTOP)
        assert server.wait() is None


def test_a_server_is_not_given_up_for_one_missing_answer_after_a_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(embedded, "SILENT_SECONDS", 1.0)
    heard = iter([False, True])

    def answers_late(host: str, port: int) -> bool:
        if not (heard_one := next(heard, True)):
            time.sleep(1.5)  # the machine stands still
        return heard_one

    monkeypatch.setattr(embedded, "answers", answers_late)
    with subprocess.Popen(["sleep", "3"]) as process:
        assert embedded.ZooKeeper(0, process).wait() == 0


def test_java_does_not_survive_a_killed_parent(start: Start, tmp_path: Path) -> None:
    process = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path))
    host, port = process.ready().split(":")
    (java,) = java_children(process.pid)
    process.signal(signal.SIGKILL)
    process.wait()
    wait_until("java is gone", lambda: not Path(f"/proc/{java}").exists())
    assert not answers(host, int(port))


def test_one_that_is_started_again_waits_for_the_java_of_the_killed_one(start: Start, tmp_path: Path) -> None:
    killed = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path))
    killed.ready()
    (java,) = java_children(killed.pid)
    os.kill(java, signal.SIGSTOP)  # so that it ends late
    killed.kill()
    again = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path))
    with pytest.raises(AssertionError, match="not within"):
        again.ready(timeout_s=2)
    os.kill(java, signal.SIGCONT)
    again.ready()


def test_one_whose_directory_was_put_back_waits_for_the_port_of_the_killed_one(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    ends = threading.Timer(0.5, taken.close)
    ends.start()
    with embedded.ZooKeeper.start(tmp_path, port) as server:
        assert answers("127.0.0.1", server.port)
    ends.join()


@pytest.mark.slow
def test_a_taken_port_and_a_taken_directory_are_one_clear_line_each(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run_millrace("zookeeper", "--port", port, "--data-dir", str(tmp_path / "a"))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in result.stderr
    assert "give another port" in result.stderr

    start("zookeeper", "--port", "0", "--data-dir", str(tmp_path / "b")).ready()
    result = run_millrace("zookeeper", "--port", "0", "--data-dir", str(tmp_path / "b"))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "another ZooKeeper uses" in result.stderr


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, "install Java 17 or newer"),
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", "is Java 11: install Java 17"),
        ("#!/bin/sh\necho 'java version \"1.8.0_202\"' >&2\n", "is Java 8: install Java 17"),
        ("#!/bin/sh\nexit 1\n", "does not report its version"),
    ],
)
def test_missing_or_old_java_is_one_clear_line(script: str | None, expected: str, tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    if script is not None:
        java = home / "bin" / "java"
        java.write_text(script)
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
    result = run_millrace(
        "zookeeper", "--port", "0", "--data-dir", str(tmp_path / "data"), env={"JAVA_HOME": str(home)}
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr


def test_missing_pyspark_is_one_clear_line(tmp_path: Path) -> None:
    # A folder that shadows nothing else: the real one is hidden by a finder that knows no pyspark.
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pyspark' else found(name, *more)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    result = run_millrace(
        "zookeeper", "--port", "0", "--data-dir", str(tmp_path / "data"), env={"PYTHONPATH": path}
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "pip install 'millrace-pipeline[spark]" in result.stderr


def test_a_free_port_that_somebody_takes_first_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr(embedded, "free_port", lambda port: ports.pop(0))
        with embedded.ZooKeeper.start(tmp_path / "data") as server:
            assert server.port != taken.getsockname()[1]
            assert answers("127.0.0.1", server.port)
