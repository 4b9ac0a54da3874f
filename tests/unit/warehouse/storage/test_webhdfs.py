"""WebHDFS as a client meets it on bad days: standbys, DataNodes that are gone, bytes that did not arrive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage import webhdfs
from millrace_warehouse.storage.webhdfs import WebHdfs, WebHdfsClient, web_addresses

NN1, NN2 = "nn1:9870", "nn2:9870"
CONTENT = b"parquet" * 30_000
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "PAUSE_S", 0.001)


def refused(name: str, message: str, status: int = 403) -> httpx.Response:
    return httpx.Response(status, json={"RemoteException": {"javaClassName": name, "message": message}})


class FakeHdfs:
    """Two NameNodes, of which the second is active, and DataNodes a and b; `answers` go before its own."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.seen: list[str] = []
        self.answers: dict[str, list[httpx.Response | Exception]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        url, op = request.url, request.url.params["op"]
        self.seen.append(f"{url.host} {op}")
        if waiting := self.answers.get(self.seen[-1]):
            answer = waiting.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        path = url.path.removeprefix("/webhdfs/v1")
        if url.host == "nn1":
            return refused("org.apache.hadoop.ipc.StandbyException", "Operation READ is not supported")
        if url.host == "nn2":
            return self._namenode(url, op, path)
        if op == "CREATE":
            if path in self.files and url.params["overwrite"] == "false":
                return refused("org.apache.hadoop.fs.FileAlreadyExistsException", f"{path} already exists")
            self.files[path] = request.read()
            return httpx.Response(201)
        return httpx.Response(200, content=self.files[path])

    def _namenode(self, url: httpx.URL, op: str, path: str) -> httpx.Response:
        assert url.params["user.name"] == "loader"
        if op != "CREATE" and path != "/" and path not in self.files:
            return refused("java.io.FileNotFoundException", f"File does not exist: {path}", 404)
        if op == "GETFILESTATUS":
            return httpx.Response(200, json={"FileStatus": {"length": len(self.files.get(path, b""))}})
        node = "b" if url.params.get("excludedatanodes") == "a" else "a"
        return httpx.Response(200, json={"Location": str(url.copy_with(host=node, port=9864))})


def client(hdfs: Handler, patience_s: float = 5.0) -> WebHdfsClient:
    where = WebHdfs(addresses=[NN1, NN2], user="loader", patience_s=patience_s)
    return WebHdfsClient(where, httpx.MockTransport(hdfs))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def test_a_file_goes_there_and_back_through_the_active_namenode(source: Path, tmp_path: Path) -> None:
    hdfs = FakeHdfs()
    asking = client(hdfs)
    asking.create("/w/a%b =1/part", source)
    assert hdfs.files == {"/w/a%b =1/part": CONTENT}
    asking.fetch("/w/a%b =1/part", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert [each for each in hdfs.seen if each.startswith("nn1")] == ["nn1 CREATE"]  # the standby, once
    with pytest.raises(FileNotFoundError):
        asking.fetch("/gone", tmp_path / "copy")
    with pytest.raises(FileExistsError):
        asking.create("/w/a%b =1/part", source)


@pytest.mark.parametrize(
    ("who", "answer"),
    [
        ("a CREATE", httpx.ConnectError("Connection refused")),
        ("a CREATE", httpx.ReadTimeout("silent")),
        ("a CREATE", refused("java.io.IOException", "All datanodes are bad. Aborting...")),
        ("a CREATE", refused("java.net.ConnectException", "Call From a to nn2 failed")),
        ("a CREATE", refused("java.net.SocketException", "Call From a to nn2 failed: Connection reset")),
        ("a CREATE", httpx.Response(503)),
        ("nn2 CREATE", httpx.ConnectError("Connection refused")),
        ("nn2 CREATE", refused("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create")),
        ("nn2 CREATE", refused("org.apache.hadoop.ipc.RetriableException", "Namenode is in startup mode")),
        ("nn2 GETFILESTATUS", httpx.Response(200, json={"FileStatus": {"length": 7}})),
        ("nn2 GETFILESTATUS", httpx.ConnectError("Connection refused")),
    ],
)
def test_what_passes_is_tried_again_and_replaces_what_is_there(
    source: Path, who: str, answer: httpx.Response | Exception
) -> None:
    hdfs = FakeHdfs()
    hdfs.answers[who] = [answer]
    client(hdfs).create("/w/part", source)
    assert hdfs.files == {"/w/part": CONTENT}
    assert not hdfs.answers[who]


def test_a_datanode_that_does_not_answer_is_left_out_the_next_time(source: Path, tmp_path: Path) -> None:
    hdfs = FakeHdfs()
    gone: list[httpx.Response | Exception] = [httpx.ConnectError("Connection refused")] * 2
    hdfs.answers = {"a CREATE": gone[:1], "a OPEN": gone[1:]}
    asking = client(hdfs)
    asking.create("/w/part", source)
    asking.fetch("/w/part", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert [each for each in hdfs.seen if each[0] in "ab"] == ["a CREATE", "b CREATE", "a OPEN", "b OPEN"]


QUOTA = "The DiskSpace quota of /w is exceeded: quota = 1 B but diskspace consumed = 2 B"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            refused("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", f"{QUOTA}\n\tat a.b"),
            f"/w/part: {QUOTA}: raise the quota",
        ),
        (
            refused(
                "org.apache.hadoop.security.AccessControlException", "Permission denied: user=loader\n\tat"
            ),
            "Permission denied: user=loader: let this user write",
        ),
        (httpx.Response(401, text="<html>"), "a:9864 answers 401 Unauthorized .*: take --sink spark"),
        (refused("java.lang.IllegalStateException", "odd"), "/w/part: java.lang.IllegalStateException: odd"),
    ],
)
def test_a_refusal_is_one_sentence_at_once(source: Path, answer: httpx.Response, words: str) -> None:
    hdfs = FakeHdfs()
    hdfs.answers["a CREATE"] = [answer]
    with pytest.raises(MillraceError, match=words) as error:
        client(hdfs).create("/w/part", source)
    assert "\n" not in str(error.value)
    assert hdfs.files == {}


def test_the_wait_is_bounded_and_names_everybody_who_was_asked(source: Path) -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused", request=request)

    with pytest.raises(MillraceError) as error:
        client(nobody, patience_s=0.01).create("/w/part", source)
    assert "within 0 s (NameNode nn1:9870: Connection refused; NameNode nn2:9870: Conn" in str(error.value)
    assert str(error.value).endswith("or take --sink spark")


NAMED = {
    "dfs.nameservices": "events, other",
    "dfs.ha.namenodes.events": "one,two",
    "dfs.namenode.rpc-address.events.one": "h1",
    "dfs.namenode.rpc-address.events.two": "h2:9000",
    "dfs.namenode.http-address.events.two": "web2:50070",
    "dfs.namenode.rpc-address.other": "h3:8020",
    "dfs.namenode.http-address": "0.0.0.0:9870",
}


@pytest.mark.parametrize(
    ("settings", "authority", "expected"),
    [
        (NAMED, "events", ["h1:9870", "web2:50070"]),
        (NAMED, "h1:8020", ["h1:9870"]),
        (NAMED, "h2:9000", ["web2:50070"]),
        (NAMED, "other", ["h3:9870"]),
        (NAMED, "h4:8020", ["h4:9870"]),
        ({}, "h4", ["h4:9870"]),
        ({"dfs.namenode.http-address": "web:1"}, "h4:8020", ["web:1"]),
    ],
)
def test_the_web_addresses_are_those_of_the_configuration(
    settings: dict[str, str], authority: str, expected: list[str]
) -> None:
    assert web_addresses(settings.get, authority) == expected
