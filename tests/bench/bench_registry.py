"""Look-ups a second of a registry on one core, with 1,000 subjects of 20 versions.

    python -m tests.bench.bench_registry [--subjects 1000] [--versions 20] [--seconds 5] [--page]

Prints a table for SQLite and, where it is installed, for PostgreSQL; `--page` puts it into
docs/benchmarks.md. What is measured stands in `TEXT`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from millrace_registry.avro_schema import parse
from millrace_registry.store import Store
from tests import postgres
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.bench.replay import cpu_seconds
from tests.support import start_for_the_test_run

TEXT = """# Look-ups in the schema registry

One `millrace registry` on one core; {clients} clients on another, each with one connection and one request
at a time, in random order over {subjects:,} subjects of {versions} versions, 12 to 31 fields each. CPU is
the CPU of the registry's process alone; PostgreSQL uses the clients' core in addition. "First" is the first
time that an id is looked up in this process, "again" is from its memory.

- Run: `make bench-registry`, {day}; other processes used {busy:.0%} of all cores before it
- Machine: {machine}

| database | request | answered a second | CPU microseconds |
| --- | --- | ---: | ---: |
{rows}
"""
CLIENTS = 8
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def text_of(subject: int, version: int) -> str:
    """Version 1 has twelve fields, each later one an optional field more."""
    fields = [{"name": f"field{i}", "type": ["null", "string"], "default": None} for i in range(11 + version)]
    return json.dumps({"type": "record", "name": f"Record{subject}", "fields": fields})


def fill(url: str, subjects: int, versions: int) -> None:
    """Register every version, in one transaction; version v of subject s has id s * versions + v."""
    store = Store.open(url)
    with store.write() as rows:
        for subject in range(subjects):
            for version in range(1, versions + 1):
                schema = parse(text_of(subject, version))
                schema_id = subject * versions + version
                stored = rows.add_schema(schema.fingerprint([]), schema.text, schema_id=schema_id)
                rows.add_version(f"subject-{subject}", stored)
    store.close()


@contextmanager
def registry(url: str) -> Iterator[tuple[int, int]]:
    """A registry on the last core: its process id and its port."""
    command = [sys.executable, "-m", "millrace.cli", "registry", "--listen", "127.0.0.1:0"]
    process = start_for_the_test_run([*command, "--database-url", url], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(process.pid, {(os.cpu_count() or 1) - 1})  # before it has other threads
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)


def ask(connection: socket.socket, request: bytes) -> None:
    """Send a request and read its whole answer, which must be a 200."""
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1 << 16)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], answer
    length = _LENGTH.search(head)
    assert length is not None
    missing = int(length[1]) - len(body)
    while missing > 0:
        missing -= len(connection.recv(missing))


def measured(
    pid: int, port: int, requests: Callable[[random.Random], Iterator[bytes]], seconds: float
) -> str:
    """Requests a second and CPU microseconds of each, as cells: until they end or the time is over."""
    counts = [0] * CLIENTS
    deadline = time.perf_counter() + seconds

    def client(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for request in requests(random.Random(number)):
                ask(connection, request)
                counts[number] += 1
                if time.perf_counter() > deadline:
                    break

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu, count = time.perf_counter() - began, cpu_seconds(pid) - cpu, sum(counts)
    return f"{count / wall:,.0f} | {cpu / count * 1e6:,.0f}"


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: registry\r\n\r\n".encode()


def post(path: str, text: str) -> bytes:
    body = json.dumps({"schema": text})
    head = f"POST {path} HTTP/1.1\r\nHost: registry\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def measure(name: str, url: str, subjects: int, versions: int, seconds: float) -> list[str]:
    """The rows of one database."""
    fill(url, subjects, versions)
    every = list(range(1, subjects * versions + 1))
    random.Random(0).shuffle(every)

    def first(chance: random.Random) -> Iterator[bytes]:
        while every:
            yield get(f"/schemas/ids/{every.pop()}")

    def again(chance: random.Random) -> Iterator[bytes]:
        while True:
            yield get(f"/schemas/ids/{chance.randint(1, subjects * versions)}")

    def version(chance: random.Random) -> Iterator[bytes]:
        while True:
            number = chance.randint(1, versions)
            yield get(f"/subjects/subject-{chance.randrange(subjects)}/versions/{number}")

    def register(chance: random.Random) -> Iterator[bytes]:
        while True:
            subject = chance.randrange(subjects)
            yield post(f"/subjects/subject-{subject}/versions", text_of(subject, chance.randint(1, versions)))

    kinds = {
        "schema by id, first": first,
        "schema by id, again": again,
        "a version of a subject": version,
        "registration of a schema that exists": register,
    }
    with registry(url) as (pid, port):
        return [
            f"| {name} | {kind} | {measured(pid, port, requests, 60 if requests is first else seconds)} |"
            for kind, requests in kinds.items()
        ]


def main() -> None:
    """Measure SQLite, then PostgreSQL where it is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=1000)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    busy = busy_share()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)  # and so do the processes that are started from here
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-registry-") as folder:
        sqlite = nullcontext(f"sqlite:///{folder}/registry.db")
        databases = {"SQLite": sqlite, "PostgreSQL": postgres.postgresql() if postgres.installed() else None}
        for name, database in databases.items():
            if database is not None:
                with database as url:
                    rows += measure(name, url, options.subjects, options.versions, options.seconds)
    text = TEXT.format(
        clients=CLIENTS,
        subjects=options.subjects,
        versions=options.versions,
        day=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        busy=busy,
        machine=in_words(machine()),
        rows="\n".join(rows),
    )
    print(text)
    if options.page:
        write_half(PAGE, "registry", text)


if __name__ == "__main__":
    main()
