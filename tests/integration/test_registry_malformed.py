"""Malformed and costly requests to a live registry on both databases: never a 500, never a second of work."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.conftest import Start
from tests.support import ROUNDS, WAIT_S, Process

REQUESTS = 800
"""Requests of a round; `make soak` sends ten rounds of them to each database."""
MOST_CPU_S = 1.0

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "get", "", "BREW"]
PATHS = [
    "/",
    "/subjects",
    "/subjects/{}",
    "/apply",
    "/ui",
    "/ui/subjects/{}",
    "/ui/subjects/{}/diff",
    "/subjects/{}/metadata",
    "/subjects/{}/versions",
    "/subjects/{}/versions/{}",
    "/subjects/{}/versions/{}/schema",
    "/subjects/{}/versions/{}/referencedby",
    "/schemas",
    "/schemas/ids/{}",
    "/schemas/ids/{}/schema",
    "/schemas/ids/{}/subjects",
    "/schemas/ids/{}/versions",
    "/schemas/guids/{}",
    "/compatibility/subjects/{}/versions",
    "/compatibility/subjects/{}/versions/{}",
    "/config",
    "/config/{}",
    "/mode",
    "/mode/{}",
    "/{}",
    "/{}/{}/{}/{}/{}/{}",
]
SEGMENTS = [
    "s",
    "t",
    "latest",
    "-1",
    "0",
    "1",
    "2147483648",
    "9" * 400,
    "..",
    "%",
    "%zz",
    "%00",
    "%ff",
    "%ED%A0%80",
]
SEGMENTS += [
    "%2F",
    ":.:s",
    ":.x:s",
    ":*:",
    "a" * 3000,
    quote("ü"),
    " ",
    "%0A",
    "%25%30",
    "'",
    '"',
    ";--",
    "{}",
    "[]",
]
NAMES = [
    "deleted",
    "deletedOnly",
    "permanent",
    "limit",
    "offset",
    "subjectPrefix",
    "format",
    "key",
    "value",
    "force",
]
NAMES += ["verbose", "normalize", "defaultToGlobal", "latestOnly", "subject", "x"]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    1e300,
    "",
    "\0",
    "\ud800",
    "x" * 70_000,
]
VALUES += [[], {}, [[]], "NONE", "FULL", "IMPORT", "READONLY", "READWRITE", "AVRO", "JSON", {"a": {"b": []}}]
KEYS = ["schema", "schemaType", "references", "metadata", "ruleSet", "id", "version", "compatibility", "mode"]
KEYS += ["compatibilityLevel", "alias", "schemaTagsToAdd", "normalize", "\0", "x"]
TYPES = ["application/vnd.schemaregistry.v1+json", "application/json", "text/plain", "", "a/b;" * 50, "\x7f"]


def named(kind: str, name: str, **attributes: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **attributes}


def record(name: str, *fields: Any) -> dict[str, Any]:
    return named("record", name, fields=list(fields))


def costly(chance: random.Random) -> Any:
    """A schema that is large, deep or wide in one of many ways."""
    size = chance.choice([100, 3000, 20_000])
    prefix = chance.choice("AB")
    fixed = [named("fixed", f"{prefix}{i}", size=1) for i in range(size)]
    deep: Any = "int"
    for _ in range(chance.choice([60, 70, 300])):
        deep = {"type": "array", "items": deep}
    diamond: list[Any] = [record("D0")]
    for level in range(1, min(size, 300)):
        below = f"D{level - 1}"
        diamond.append(record(f"D{level}", {"name": "a", "type": below}, {"name": "b", "type": below}))
    cases: list[Callable[[], Any]] = [
        lambda: fixed,
        lambda: record("R", {"name": "a", "type": fixed, "default": "x" * 50_000}),
        lambda: deep,
        lambda: diamond,
        lambda: record("R", {"name": "x", "type": diamond, "default": {}}, {"name": "y", "type": "D9"}),
        lambda: record("R", *({"name": f"{prefix}{i}", "type": ["null", "int"]} for i in range(size))),
        lambda: record("R", {"name": "a", "type": "int", "aliases": [f"{prefix}{i}" for i in range(size)]}),
        lambda: named("enum", "E", symbols=[f"{prefix}{i}" for i in range(size)]),
        lambda: record("R", {"name": "a", "type": {"type": "map", "values": "R"}, "default": {"x": {}}}),
        lambda: [
            record(f"{prefix}{i}", {"name": "x", "type": {"type": "array", "items": "int"}})
            for i in range(size)
        ],
    ]
    return chance.choice(cases)()


def small(chance: random.Random) -> Any:
    types = [
        "int",
        "no",
        ["null", "int"],
        [],
        {"type": "fixed", "name": "F", "size": -1},
        {"type": 7},
        None,
        {},
    ]
    fields = [{"name": chance.choice(["a", "b", "", "ü", 7]), "type": chance.choice(types)} for _ in range(3)]
    return chance.choice([record("R", *fields), record("R", fields[0]), *types])


def body(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(60))
    if chance.random() < 0.05:
        return chance.choice(
            [b"[" * 100_000, b'{"a":' * 3000, b'{"a":' + b"9" * 5000 + b"}", b"{" * 4_000_000]
        )
    fields = {chance.choice(KEYS): chance.choice(VALUES) for _ in range(chance.randrange(4))}
    if chance.random() < 0.8:
        schema = costly(chance) if chance.random() < 0.1 else small(chance)
        text = json.dumps(schema)
        fields["schema"] = text if chance.random() < 0.9 else text[: chance.randrange(len(text) + 1)]
    if chance.random() < 0.2:
        reference = {
            "name": "R",
            "subject": chance.choice(["s", "t", "\0"]),
            "version": chance.choice([1, 0, "x"]),
        }
        fields["references"] = [reference] * chance.choice([1, 2, 300])
    return json.dumps(fields).encode()


def request(chance: random.Random) -> tuple[bytes, bool]:
    """One HTTP request, seldom a right one, and whether it is whole."""
    if chance.random() < 0.03:
        junk = [b"", b"\r\n\r\n", b"\0" * 200, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"x" * 100_000]
        return chance.choice(junk), False
    path = chance.choice(PATHS)
    while "{}" in path:
        segment = (
            chance.choice(SEGMENTS)
            if chance.random() < 0.9
            else "".join(chance.choices(string.printable, k=5))
        )
        path = path.replace("{}", segment.replace("{}", "%7B%7D"), 1)
    query = "&".join(f"{chance.choice(NAMES)}={chance.choice(SEGMENTS)}" for _ in range(chance.randrange(4)))
    method = chance.choice(METHODS[:4]) if chance.random() < 0.95 else chance.choice(METHODS)
    content = body(chance) if method in ("POST", "PUT") else b""
    length = len(content) if chance.random() < 0.97 else chance.choice([0, 7, 10**12, -1])
    head = f"{method} {path}?{query} HTTP/1.1\r\nHost: registry\r\nConnection: close\r\n"
    head += f"Content-Type: {chance.choice(TYPES[:2] if chance.random() < 0.9 else TYPES)}\r\n"
    if chance.random() < 0.02:
        head += "X: " + "y" * 70_000 + "\r\n"
    whole = length == len(content) and method in METHODS[:7]
    return f"{head}Content-Length: {length}\r\n\r\n".encode("utf-8", "replace") + content, whole


def send(address: tuple[str, int], sent: bytes, *, whole: bool) -> bytes:
    """Send bytes; return the answer. The registry must close the connection when the request is whole."""
    with socket.create_connection(address, WAIT_S) as connection:
        answer = b""
        try:
            connection.sendall(sent)
            if not whole:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionError:  # it refused to read on
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        return answer


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/registry.db"
    url: str = request.getfixturevalue("postgres_url")  # what a test before left there does no harm
    return url


@pytest.mark.slow
@pytest.mark.soak
def test_no_malformed_request_fails_or_takes_a_second_of_work(start: Start, database: str) -> None:
    registry: Process = start("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    host, _, port = registry.ready().rpartition(":")
    address, url = (host, int(port)), f"http://{host}:{port}"
    chance = random.Random(ROUNDS)
    for number in range(REQUESTS * ROUNDS):
        if number % 100 == 0:  # else READONLY would soon refuse all
            for path in ("/mode", "/mode/s", "/mode/t"):
                httpx.put(url + path, json={"mode": "READWRITE"}, timeout=WAIT_S).raise_for_status()
        sent, whole = request(chance)
        before = cpu_seconds(registry.pid)
        answer = send(address, sent, whole=whole)
        used = cpu_seconds(registry.pid) - before
        shown = f"request {number}: {sent[:300]!r} answered {answer[:300]!r} after {used} s of CPU"
        assert not answer or int(answer.split(b" ", 2)[1]) < 500, shown
        assert used < MOST_CPU_S, shown
    assert httpx.get(f"{url}/healthz", timeout=WAIT_S).json() == {"status": "ok"}
    assert registry.stop() == 0
    assert "Traceback" not in registry.output
