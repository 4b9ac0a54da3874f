"""HDFS as a client meets it on bad days: standbys, DataNodes that are gone, answers that did not arrive."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage import Written, open_storage, webhdfs
from millrace_warehouse.storage.hadoop_settings import WebHdfs, find_webhdfs, read_settings, web_addresses
from millrace_warehouse.storage.hdfs import HdfsStorage
from millrace_warehouse.storage.webhdfs import WebHdfsClient
from millrace_warehouse.storage.webhdfs_errors import NotNow, refusal
from tests.support import child

NN1, NN2 = "nn1:9870", "nn2:9870"
CONTENT = b"parquet" * 30_000
HDFS = "org.apache.hadoop.hdfs"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "PAUSE_S", 0.001)


def refused(name: str, message: str, status: int = 403) -> httpx.Response:
    return httpx.Response(status, json={"RemoteException": {"javaClassName": name, "message": message}})


class Lost(Exception):
    """The request is carried out, and its answer does not arrive."""


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
            if isinstance(answer, Lost):
                self._answer(request, op)
                raise httpx.ReadTimeout("silent")
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self._answer(request, op)

    def _answer(self, request: httpx.Request, op: str) -> httpx.Response:
        url, path = request.url, request.url.path.removeprefix("/webhdfs/v1")
        if url.host == "nn1":
            return refused("org.apache.hadoop.ipc.StandbyException", "Operation READ is not supported")
        if url.host == "nn2":
            return self._namenode(url, op, path)
        if op == "CREATE":
            assert (url.params["overwrite"], url.params["createflag"]) == ("true", "create,sync_block")
            self.files[path] = request.read()
            assert request.headers["Content-Length"] == str(len(self.files[path]))
            return httpx.Response(201)
        start, length = int(url.params["offset"]), int(url.params.get("length", 1 << 40))
        return httpx.Response(200, content=self.files[path][start : start + length])

    def _namenode(self, url: httpx.URL, op: str, path: str) -> httpx.Response:
        assert url.params["user.name"] == "loader"
        if op == "DELETE":
            return httpx.Response(200, json={"boolean": self.files.pop(path, None) is not None})
        if op == "LISTSTATUS_BATCH":
            return self._listing(path, url.params["startafter"])
        if op != "CREATE" and path not in self.files:
            return refused("java.io.FileNotFoundException", f"File does not exist: {path}", 404)
        if op == "RENAME":
            target, options = url.params["destination"], url.params["renameoptions"]
            if options == "NONE" and target in self.files:
                return refused("org.apache.hadoop.fs.FileAlreadyExistsException", f"{target} exists")
            self.files[target] = self.files.pop(path)
            return httpx.Response(200)
        if op == "GETFILESTATUS":
            return httpx.Response(200, json={"FileStatus": {"length": len(self.files[path])}})
        size, start = len(self.files.get(path, b"")), int(url.params.get("offset", 0))
        if 0 < size <= start:
            return refused("java.io.IOException", f"Offset={start} out of the range [0, {size}); OPEN")
        gone = url.params.get("excludedatanodes", "").split(",")
        if not (nodes := [node for node in "abc" if node not in gone]):
            return refused("java.io.IOException", "Failed to find datanode, suggest to check cluster health.")
        node = nodes[0]
        return httpx.Response(200, json={"Location": str(url.copy_with(host=node, port=9864))})

    def _listing(self, path: str, after: str) -> httpx.Response:
        """Two entries at a time: a file itself, or what is below a folder."""
        inside = {file[len(path) + 1 :] for file in self.files if file.startswith(f"{path}/")}
        names = sorted(name for name in {name.split("/")[0] for name in inside} if name > after)
        if path in self.files:
            names = [""]
        elif not inside:
            return refused("java.io.FileNotFoundException", f"File {path} does not exist.", 404)
        statuses = [
            {
                "pathSuffix": name,
                "type": "FILE" if f"{path}/{name}".rstrip("/") in self.files else "DIRECTORY",
                "length": len(self.files.get(f"{path}/{name}".rstrip("/"), b"")),
                "modificationTime": 1500,
            }
            for name in names[:2]
        ]
        listing = {"partialListing": {"FileStatuses": {"FileStatus": statuses}}}
        return httpx.Response(200, json={"DirectoryListing": {**listing, "remainingEntries": len(names[2:])}})


class OnServers(HdfsStorage):
    """Storage with a client of its own. Its tasks have the client of their process."""

    def __init__(self, root: str, where: WebHdfs, client: WebHdfsClient) -> None:
        super().__init__(root, where)
        self._own_client = client

    @property
    def _client(self) -> WebHdfsClient:
        return self._own_client


def storage_on(hdfs: Handler, patience_s: float = 5.0) -> HdfsStorage:
    where = WebHdfs(addresses=(NN1, NN2), user="loader", patience_s=patience_s)
    return OnServers("hdfs://events/w", where, WebHdfsClient(where, httpx.MockTransport(hdfs)))


def test_a_file_goes_there_and_back_through_the_active_namenode() -> None:
    hdfs = FakeHdfs()
    storage = storage_on(hdfs)
    written = storage.put("a%b =1/part", io.BytesIO(CONTENT))
    assert written == Written(len(CONTENT), sha256(CONTENT).hexdigest())
    assert hdfs.files == {"/w/a%b =1/part": CONTENT}
    assert storage.read("a%b =1/part") == CONTENT
    assert storage.read("a%b =1/part", 3, 9) == CONTENT[3:12]
    assert storage.read("a%b =1/part", len(CONTENT), 9) == b""
    assert [each for each in hdfs.seen if each.startswith("nn1")] == ["nn1 CREATE"]  # the standby, once
    with pytest.raises(FileNotFoundError):
        storage.read("gone")


def test_names_and_files_are_listed_in_portions() -> None:
    hdfs = FakeHdfs()
    storage = storage_on(hdfs)
    for name in ("5", "1", "3", "f/x", "2", "4", ".draft.1"):
        hdfs.files[f"/w/t/{name}"] = name.encode()
    assert storage.names("t") == ["1", "2", "3", "4", "5", "f"]
    assert storage.names("t", after="3") == ["4", "5", "f"]
    assert [(each.path, each.bytes) for each in storage.files("t")] == [
        (".draft.1", 8),
        *((name, 1) for name in "12345"),
        ("f/x", 3),
    ]
    assert [(each.path, each.bytes, each.modified) for each in storage.files("t/1")] == [("", 1, 1.5)]
    assert (storage.names("none"), storage.files("none"), storage.names("t/1")) == ([], [], [])
    storage.delete("t/1")
    storage.delete("t/1")
    assert storage.names("t", after="0")[0] == "2"


def test_a_name_is_taken_by_one_and_nothing_else_is_left() -> None:
    hdfs = FakeHdfs()
    storage = storage_on(hdfs)
    assert storage.create("loads/1", b"first")
    assert not storage.create("loads/1", b"second")
    assert storage.create("loads/1", b"first")
    assert hdfs.files == {"/w/loads/1": b"first"}


@pytest.mark.parametrize("winner", [b"mine", b"another's"])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_rename_whose_answer_is_lost_is_looked_up(winner: bytes, turns: int) -> None:
    hdfs = FakeHdfs()
    hdfs.answers["nn2 RENAME"] = [Lost() for _ in range(turns)]
    if winner != b"mine":
        hdfs.files["/w/loads/1"] = winner
    assert storage_on(hdfs).create("loads/1", b"mine") == (winner == b"mine")
    assert hdfs.files == {"/w/loads/1": winner}
    assert not hdfs.answers["nn2 RENAME"]


@pytest.mark.parametrize(
    ("who", "answer"),
    [
        ("a CREATE", httpx.ConnectError("Connection refused")),
        ("a CREATE", httpx.ReadTimeout("silent")),
        ("a CREATE", Lost()),
        ("a CREATE", refused("java.io.IOException", "All datanodes are bad. Aborting...")),
        ("a CREATE", refused("java.net.ConnectException", "Call From a to nn2 failed")),
        ("a CREATE", refused("java.net.SocketException", "Call From a to nn2 failed: Connection reset")),
        ("a CREATE", httpx.Response(503)),
        ("nn2 CREATE", httpx.ConnectError("Connection refused")),
        ("nn2 CREATE", refused(f"{HDFS}.server.namenode.SafeModeException", "Cannot create")),
        ("nn2 CREATE", refused("org.apache.hadoop.ipc.RetriableException", "Namenode is in startup mode")),
        ("nn2 GETFILESTATUS", httpx.Response(200, json={"FileStatus": {"length": 7}})),
        ("nn2 GETFILESTATUS", httpx.ConnectError("Connection refused")),
    ],
)
def test_what_passes_is_tried_again_and_replaces_what_is_there(
    who: str, answer: httpx.Response | Exception
) -> None:
    hdfs = FakeHdfs()
    hdfs.answers[who] = [answer]
    written = storage_on(hdfs).put("part", io.BytesIO(CONTENT))
    assert written == Written(len(CONTENT), sha256(CONTENT).hexdigest())
    assert hdfs.files == {"/w/part": CONTENT}
    assert not hdfs.answers[who]


def test_a_datanode_that_does_not_answer_is_left_out_the_next_time() -> None:
    hdfs = FakeHdfs()
    gone: list[httpx.Response | Exception] = [httpx.ConnectError("Connection refused")] * 2
    hdfs.answers = {"a CREATE": gone[:1], "a OPEN": gone[1:]}
    storage = storage_on(hdfs)
    storage.put("part", io.BytesIO(CONTENT))
    assert storage.read("part") == CONTENT
    assert [each for each in hdfs.seen if each[0] in "ab"] == ["a CREATE", "b CREATE", "a OPEN", "b OPEN"]


def test_datanodes_that_do_not_answer_are_all_left_out_until_none_is_left() -> None:
    hdfs = FakeHdfs()
    hdfs.answers = {f"{node} CREATE": [httpx.ConnectError("Connection refused")] for node in "abc"}
    storage_on(hdfs).put("part", io.BytesIO(CONTENT))
    assert [each[0] for each in hdfs.seen if each[0] in "abc"] == ["a", "b", "c", "a"]
    assert hdfs.files == {"/w/part": CONTENT}


@pytest.mark.parametrize(
    "bad",
    [
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"),
        httpx.Response(404, text="<html>"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"DirectoryListing": None}),
        httpx.Response(200, json=["DirectoryListing"]),
        httpx.DecodingError("not compressed"),
    ],
)
def test_a_bad_namenode_does_not_hide_a_good_one(bad: httpx.Response | Exception) -> None:
    hdfs = FakeHdfs()
    hdfs.files["/w/a"] = CONTENT
    hdfs.answers["nn1 LISTSTATUS_BATCH"] = [bad]
    assert storage_on(hdfs).names("") == ["a"]


def test_of_a_bad_namenode_and_a_refusal_the_refusal_is_raised_at_once() -> None:
    hdfs = FakeHdfs()
    hdfs.answers["nn1 LISTSTATUS_BATCH"] = [httpx.Response(404, text="<html>")]
    hdfs.answers["nn2 LISTSTATUS_BATCH"] = [
        refused("org.apache.hadoop.security.AccessControlException", "Permission denied")
    ]
    with pytest.raises(MillraceError, match="Permission denied: let this user write"):
        storage_on(hdfs).names("")


def test_of_bad_namenodes_alone_the_first_is_named() -> None:
    hdfs = FakeHdfs()
    hdfs.answers["nn1 LISTSTATUS_BATCH"] = [httpx.Response(404, text="<html>")]
    hdfs.answers["nn2 LISTSTATUS_BATCH"] = [httpx.ConnectError("Connection refused")]
    with pytest.raises(MillraceError, match=r"nn1:9870 answers 404 Not Found .*: check what stands at that"):
        storage_on(hdfs).names("")


def test_a_process_has_one_client_and_a_forked_one_another() -> None:
    where = WebHdfs(addresses=(NN1, NN2), user="loader", new_files={"replication": "2"})
    one, another = HdfsStorage("hdfs://events/w", where), HdfsStorage("hdfs://events/v", where)
    assert one._client is another._client
    assert one._client is not HdfsStorage("hdfs://events/w", replace(where, user="other"))._client
    here = one._client

    def forked() -> None:
        assert one._client is not here

    assert child(forked) == 0


def test_a_datanode_that_was_given_up_and_goes_on_later_changes_no_file_that_was_confirmed() -> None:
    hdfs, late = FakeHdfs(), []

    def standing_still(request: httpx.Request) -> httpx.Response:
        if request.url.params["op"] == "CREATE" and request.url.host == "a":
            late.append(request.url.path.removeprefix("/webhdfs/v1"))
            raise httpx.WriteTimeout("silent")
        return hdfs(request)

    storage = storage_on(standing_still)
    storage.put("part", io.BytesIO(CONTENT))
    assert storage.create("loads/1", CONTENT)
    assert len(late) == 2
    for path in late:
        hdfs.files[path] = CONTENT[:1000]
    assert storage.read("part") == storage.read("loads/1") == CONTENT
    assert storage.names("") == ["loads", "part"]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_file_whose_rename_was_not_answered_is_stored(turns: int) -> None:
    hdfs = FakeHdfs()
    hdfs.answers["nn2 RENAME"] = [Lost() for _ in range(turns)]
    storage_on(hdfs).put("part", io.BytesIO(CONTENT))
    assert hdfs.files == {"/w/part": CONTENT}


QUOTA = "The DiskSpace quota of /w is exceeded: quota = 1 B but diskspace consumed = 2 B"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refused(f"{HDFS}.protocol.DSQuotaExceededException", f"{QUOTA}\n\tat a.b"), f"{QUOTA}: raise the"),
        (
            refused(
                "org.apache.hadoop.security.AccessControlException", "Permission denied: user=loader\n\tat"
            ),
            "Permission denied: user=loader: let this user write",
        ),
        (httpx.Response(401, text="<html>"), "a:9864 answers 401 Unauthorized .*: check what stands"),
        (refused("java.lang.IllegalStateException", "odd"), "/w/part: java.lang.IllegalStateException: odd"),
    ],
)
def test_a_refusal_is_one_sentence_at_once(answer: httpx.Response, words: str) -> None:
    hdfs = FakeHdfs()
    hdfs.answers["a CREATE"] = [answer]
    with pytest.raises(MillraceError, match=words) as error:
        storage_on(hdfs).put("part", io.BytesIO(CONTENT))
    assert "\n" not in str(error.value)
    assert hdfs.files == {}


def test_a_file_that_hdfs_cannot_sync_is_refused() -> None:
    hdfs = FakeHdfs()
    coded = httpx.Response(200, json={"FileStatus": {"length": len(CONTENT), "ecBit": True}})
    hdfs.answers["nn2 GETFILESTATUS"] = [coded]
    with pytest.raises(MillraceError, match=r"/w/part is erasure coded.*: give the warehouse's folder"):
        storage_on(hdfs).put("part", io.BytesIO(CONTENT))


def test_the_wait_is_bounded_and_names_everybody_who_was_asked() -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused", request=request)

    with pytest.raises(MillraceError) as error:
        storage_on(nobody, patience_s=0.01).put("part", io.BytesIO(CONTENT))
    assert "within 0 s (NameNode nn1:9870: Connection refused; NameNode nn2:9870: Conn" in str(error.value)
    assert str(error.value).endswith("check the NameNode and the DataNodes, then run again")


@pytest.mark.parametrize(
    ("name", "message", "words"),
    [
        (
            "java.io.IOException",
            "File /w/x could only be written to 0 of the 1 minReplication nodes.",
            "space",
        ),
        (f"{HDFS}.BlockMissingException", "Could not obtain block: BP-1", "start the DataNodes"),
        (f"{HDFS}.protocol.NSQuotaExceededException", "quota = 2", "quota = 2: raise the quota"),
    ],
)
def test_every_known_failure_says_what_to_do(name: str, message: str, words: str) -> None:
    assert words in str(refusal(refused(name, message), "/w/x"))


def test_an_unknown_failure_is_left_as_it_is_and_a_passing_one_is_told_apart() -> None:
    unknown = refusal(refused("java.lang.IllegalStateException", "odd"), "/w/x")
    assert str(unknown) == "/w/x: java.lang.IllegalStateException: odd"
    for name in (f"{HDFS}.server.namenode.SafeModeException", "java.net.ConnectException"):
        assert isinstance(refusal(refused(name, "no"), "/w/x"), NotNow)


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
    assert web_addresses(settings, authority) == expected


def write_settings(folder: Path, **files: dict[str, str]) -> None:
    for name, settings in files.items():
        properties = "".join(
            f"<property><name>{key}</name>\n<value> {value} </value></property>"
            for key, value in settings.items()
        )
        (folder / f"{name}-site.xml").write_text(f"<configuration>{properties}</configuration>")


def test_a_warehouse_is_found_by_the_configuration_and_travels_to_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "loader")
    made = {"dfs.replication": "2", "dfs.blocksize": "64m", "fs.permissions.umask-mode": "027"}
    write_settings(tmp_path, core={"fs.defaultFS": "hdfs://events"}, hdfs={**NAMED, **made})
    storage = open_storage("hdfs:///lake/")
    assert isinstance(storage, HdfsStorage)
    assert storage.uri("a/b") == "hdfs://events/lake/a/b"
    monkeypatch.delenv("HADOOP_CONF_DIR")
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.root, copy.where) == (storage.root, storage.where)
    assert copy.where == WebHdfs(
        addresses=("h1:9870", "web2:50070"),
        user="loader",
        new_files={
            "replication": "2",
            "blocksize": str(64 << 20),
            "permission": "640",
            "unmaskedpermission": "666",
        },
    )


def test_an_address_without_a_namenode_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no NameNode: write hdfs://host:8020/path"):
        find_webhdfs("hdfs:///lake", {})


@pytest.mark.parametrize(
    ("authentication", "policy", "expected"),
    [
        ("simple", "HTTP_ONLY", "http://nn:9870"),
        ("simple", "HTTP_AND_HTTPS", "http://nn:9870"),
        ("simple", "HTTPS_ONLY", "https://web:50470"),
        ("kerberos", "HTTP_ONLY", "http://nn:9870"),
        ("kerberos", "HTTP_AND_HTTPS", "https://web:50470"),
        ("kerberos", "HTTPS_ONLY", "https://web:50470"),
    ],
)
def test_a_token_is_sent_encrypted_where_the_servers_offer_it(
    authentication: str, policy: str, expected: str
) -> None:
    settings = {
        "hadoop.security.authentication": authentication,
        "dfs.http.policy": policy,
        "dfs.namenode.https-address": "web:50470",
    }
    _, where = find_webhdfs("hdfs://nn/lake", settings)
    assert f"{where.scheme}://{where.addresses[0]}" == expected
    assert where.kerberos == (authentication == "kerberos")


def test_a_broken_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert read_settings() == {}
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"core-site.xml: .*: correct this file"):
        read_settings()
