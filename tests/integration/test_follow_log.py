"""`millrace publish-access-log` on a real broker: standard input, gzip, a log that grows and is rotated."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest

from millrace_audit.reports.messages import schema_file
from tests.brokers import read_topic
from tests.support import Process, run_millrace, wait_until
from tests.warehouses import TestSite

Start = Callable[..., Process]


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("site")
    return TestSite.start(start_for_module, f"access-log-{uuid4().hex[:6]}", folder, zookeeper)


def line(number: int) -> str:
    return f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /{number} HTTP/1.1" 200 7 "-" "test"\n'


def command(site: TestSite, file: str, topic: str, *more: str) -> list[str]:
    arguments = ["publish-access-log", file, "--topic", topic, "--cluster", site.cluster.name]
    return [*arguments, "--bootstrap", site.cluster.bootstrap, "--registry", site.registry, *more]


def urls(site: TestSite, topic: str) -> Counter[str]:
    """Count each URL in the topic."""
    schema = fastavro.parse_schema(dict(schema_file("PageView")))
    with site.cluster.client() as client:
        contents = read_topic(client, topic)
    values = [value for partition in contents.values() for value in partition.values]
    bodies = (BytesIO((value or b"")[5:]) for value in values)
    events: list[Any] = [fastavro.schemaless_reader(body, schema, None) for body in bodies]
    return Counter(event["url"] for event in events)


def test_what_comes_through_a_pipe_is_published_and_the_rest_is_kept_with_its_reason(
    site: TestSite, tmp_path: Path
) -> None:
    topic, refused = site.topic(f"pipe-{uuid4().hex[:6]}"), tmp_path / "refused"
    text = "".join(map(line, range(5))) + "nonsense\n" + "x" * 200_000 + "\n" + line(5)
    done = run_millrace(*command(site, "-", topic, "--refused", str(refused), "--json"), stdin=text)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["acknowledged"], answer["refused"]) == (6, 2)
    assert urls(site, topic) == Counter(f"/{number}" for number in range(6))
    entries = [json.loads(entry) for entry in refused.read_text().splitlines()]
    assert [(entry["line"], entry["bytes"]) for entry in entries] == [(6, 8), (7, 200_000)]


def test_a_log_cut_inside_its_gzip_says_how_much_of_it_was_published(site: TestSite, tmp_path: Path) -> None:
    topic, log = site.topic(f"gzip-{uuid4().hex[:6]}"), tmp_path / "access.log.gz"
    zipped = gzip.compress("".join(map(line, range(2000))).encode())
    log.write_bytes(zipped[:-8])
    done = run_millrace(*command(site, str(log), topic))
    assert done.returncode == 1
    assert "after line 2000: " in done.stderr
    assert "2,000 events were published before that" in done.stderr
    assert urls(site, topic).total() == 2000


@pytest.mark.slow
def test_a_followed_log_is_published_once_through_rotations_and_restarts(
    site: TestSite, start: Start, tmp_path: Path
) -> None:
    topic, log = site.topic(f"follow-{uuid4().hex[:6]}"), tmp_path / "access.log"
    more = ["--follow", "--position", str(tmp_path / "position")]
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with log.open("a") as file:
            file.writelines(map(line, range(written, written + count)))
        written += count

    def rotate() -> None:
        if (older := tmp_path / "access.log.1").exists():
            older.rename(tmp_path / "access.log.2")
        log.rename(older)

    def wait_for_all() -> None:
        wait_until("every line is published", lambda: urls(site, topic).total() >= written)

    write(100)
    process = start(*command(site, str(log), topic, *more))
    wait_for_all()
    rotate()
    write(100)
    wait_for_all()
    assert process.stop() == 0, process.output
    write(50)  # and nobody reads it, while the log is rotated twice
    rotate()
    write(50)
    rotate()
    write(50)
    process = start(*command(site, str(log), topic, *more))
    wait_for_all()
    assert process.stop() == 0, process.output
    assert urls(site, topic) == Counter(f"/{number}" for number in range(written))
    assert "published: 150 events" in process.output
