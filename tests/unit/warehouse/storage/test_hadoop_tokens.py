"""Delegation tokens: read from YARN's file, handed to tasks, ended, and never shown."""

from __future__ import annotations

import base64
import ctypes
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage import gss, namenodes
from millrace_warehouse.storage.gss import NoTicket
from millrace_warehouse.storage.hadoop_settings import WebHdfs
from millrace_warehouse.storage.hadoop_tokens import FILE_VARIABLE, token_of_spark
from millrace_warehouse.storage.hdfs import HdfsStorage
from millrace_warehouse.storage.webhdfs import WebHdfsClient
from millrace_warehouse.storage.webhdfs_errors import NotNow
from tests.support import wait_until
from tests.unit.warehouse.storage.test_hdfs import OnServers

INVALID = (
    "Failed to obtain user group information: org.apache.hadoop.security.token.SecretManager$InvalidToken"
)
EMPTY = {"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": []}}, "remainingEntries": 0}}


def token_file(*tokens: tuple[str, str, bytes]) -> bytes:
    """A file of version 0 with tokens (kind, service, password)."""
    parts = [b"HDTS\0", bytes([len(tokens)])]
    for kind, service, password in tokens:
        # A password of more than 127 bytes has its length in a VLong of two bytes.
        size = bytes([len(password)]) if len(password) < 128 else bytes([0x8F, len(password)])
        named = [bytes([len(text)]) + text.encode() for text in (kind, service)]
        parts += [named[1], b"\x02id", size + password, *named]
    return b"".join([*parts, b"\1\x03key\x06secret"])


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("pair", b"p" * 20),
        ("127.0.0.1:8020", b"q" * 200),
        ("localhost", b"q" * 200),  # by its address, as Hadoop names it by default
        ("other:8020", b""),
    ],
)
def test_the_token_of_a_namenode_or_nameservice_is_found_in_the_file_of_yarn(
    authority: str, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").write_bytes(
        token_file(
            ("YARN_AM_RM_TOKEN", "127.0.0.1:8020", b"no"),
            ("HDFS_DELEGATION_TOKEN", "ha-hdfs:pair", b"p" * 20),
            ("HDFS_DELEGATION_TOKEN", "127.0.0.1:8020", b"q" * 200),
        )
    )
    assert token_of_spark(authority) == ""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "tokens"))
    found = token_of_spark(authority)
    whole = base64.urlsafe_b64decode(found + "=" * (-len(found) % 4))
    assert whole.startswith(b"\x02id" if expected else b"")
    assert expected in whole


WHOLE = token_file(("HDFS_DELEGATION_TOKEN", "ha-hdfs:pair", b"p" * 200), ("OTHER", "odd", b"q"))
LENGTHS = [b"\x88" + b"\xff" * 8, b"\x80" + b"\xff" * 8, b"\xff", b"\x8c\x7f\xff\xff\xff"]
"""Hostile lengths: of 16 EiB, of 9 bytes and of one byte and negative, of 2 GiB."""


def test_a_service_that_is_no_text_hides_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_bytes(
        token_file(
            ("HDFS_DELEGATION_TOKEN", "odd", b"no"), ("HDFS_DELEGATION_TOKEN", "ha-hdfs:pair", b"p")
        ).replace(b"odd", b"\xff\xfe\xfd")
    )
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "tokens"))
    assert token_of_spark("pair")


@pytest.mark.parametrize("content", [None, b"HDTS\1"])
def test_a_token_file_that_cannot_be_read_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(MillraceError, match=rf"names {path}, which cannot be read .*: correct or unset it"):
        token_of_spark("pair")


def test_every_cut_and_every_hostile_length_of_a_token_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    path.write_bytes(WHOLE)
    assert token_of_spark("pair")
    hostile = [before + length for before in (b"", b"\1\x03abc", b"\0") for length in LENGTHS]
    for content in [*(WHOLE[:size] for size in range(len(WHOLE))), *(b"HDTS\0" + each for each in hostile)]:
        path.write_bytes(content)
        with pytest.raises(MillraceError, match=rf"names {path}, which cannot be read .*: correct or unset"):
            token_of_spark("pair")


class Guarded:
    """NameNodes that ask for a ticket: nn1 is a standby, nn2 knows the tokens in `valid`."""

    def __init__(self) -> None:
        self.valid: list[str] = []
        self.made = 0
        self.cancelled: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        parameters, ticket = request.url.params, "Authorization" in request.headers
        if not ticket and "delegation" not in parameters:
            return httpx.Response(401, headers={"WWW-Authenticate": "Negotiate"}, text="<html>")
        if request.url.host == "nn1":
            name = "org.apache.hadoop.ipc.StandbyException" if ticket else "java.lang.SecurityException"
            return refused(name, "no" if ticket else f"{INVALID}: StandbyException")
        if parameters["op"] == "GETDELEGATIONTOKEN":
            self.made += 1
            self.valid = [f"secret{self.made}"]
            return httpx.Response(200, json={"Token": {"urlString": self.valid[0]}})
        if parameters["op"] == "RENEWDELEGATIONTOKEN":
            return httpx.Response(200, json={"long": (time.time() + 86_400) * 1000})
        if parameters["op"] == "CANCELDELEGATIONTOKEN":
            self.cancelled.append(parameters["token"])
            return httpx.Response(200)
        if parameters["delegation"] not in self.valid:
            return refused("java.lang.SecurityException", f"{INVALID}: Token has expired")
        return httpx.Response(200, json=EMPTY)


def refused(name: str, message: str) -> httpx.Response:
    return httpx.Response(403, json={"RemoteException": {"javaClassName": name, "message": message}})


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    monkeypatch.setattr(gss, "negotiate", lambda host: f"for {host}")
    return Guarded()


def storage_on(
    servers: Callable[[httpx.Request], httpx.Response],
    *,
    token: str = "",
    token_of_spark: str = "",
    scheme: str = "http",
) -> HdfsStorage:
    addresses = ("nn1:9870", "nn2:9870")
    where = WebHdfs(addresses=addresses, user="loader", patience_s=0.1, token=token, scheme=scheme)
    client = WebHdfsClient(where, httpx.MockTransport(servers), token_of_spark=token_of_spark)
    return OnServers("hdfs://pair/w", where, client)


def test_a_driver_that_is_asked_for_a_ticket_goes_on_by_a_token_that_tasks_get(guarded: Guarded) -> None:
    driver = storage_on(guarded)
    assert driver.names("") == driver.names("") == []
    task = pickle.loads(pickle.dumps(driver))
    assert (guarded.made, task.where.token, task.where.kerberos) == (1, "secret1", False)
    guarded.valid.clear()
    assert driver.names("") == []  # by another one
    assert pickle.loads(pickle.dumps(driver)).where.token == "secret2"


def test_a_task_whose_token_has_ended_says_so_and_takes_no_ticket(guarded: Guarded) -> None:
    task = storage_on(guarded, token="secret0")
    with pytest.raises(MillraceError, match=r"takes the delegation token no longer \(Token has expired\)"):
        task.names("")
    assert guarded.made == 0
    assert "secret0" not in f"{task.where!r}"


def test_a_namenode_that_has_just_become_active_and_does_not_know_a_token_yet_is_asked_again(
    guarded: Guarded,
) -> None:
    asked: list[str] = []

    def becoming_active(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if asked.count("nn2") == 1 and request.url.host == "nn2":
            return refused(
                "java.lang.SecurityException", f"{INVALID}: Token for real user: , can't be found in cache"
            )
        return guarded(request)

    guarded.valid = ["secret0"]
    assert storage_on(becoming_active, token="secret0").names("") == []
    assert asked == ["nn1", "nn2", "nn1", "nn2"]


def test_a_task_on_yarn_takes_the_token_of_yarn_and_then_the_drivers(guarded: Guarded) -> None:
    task = storage_on(guarded, token="secret0", token_of_spark="yarns")
    guarded.valid = ["yarns", "secret0"]
    assert task.names("") == []
    assert task._client.token_for_tasks() == "yarns"
    guarded.valid = ["secret0"]
    assert task.names("") == []
    assert task._client.token_for_tasks() == "secret0"


@pytest.mark.parametrize("status", [200, 307])
def test_a_token_is_sent_to_no_server_by_a_redirect_and_not_in_the_clear_where_tls_is_configured(
    status: int,
) -> None:
    asked: list[str] = []

    def astray(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.copy_with(query=None)))
        there = "http://elsewhere:9864/webhdfs/v1/w/a?op=OPEN&delegation=secret0"
        return httpx.Response(status, json={"Location": there}, headers={"Location": there})

    task = storage_on(astray, token="secret0", scheme="https")
    with pytest.raises(MillraceError) as error:
        task.read("a")
    assert (
        asked
        == [f"https://{name}:9870/webhdfs/v1/w/a" for name in ("nn1", "nn2")][: 1 if status == 200 else 2]
    )
    assert "secret0" not in str(error.value)
    assert ("names DataNode elsewhere:9864 without https" in str(error.value)) == (status == 200)


@pytest.mark.parametrize("schemes", ["Negotiate", 'Basic realm="x", Negotiate', "negotiate, Basic"])
def test_a_server_that_asks_for_a_ticket_among_other_schemes_gets_one(guarded: Guarded, schemes: str) -> None:
    def server(request: httpx.Request) -> httpx.Response:
        given = request.headers.get("Authorization")
        return httpx.Response(200 if given else 401, headers={"WWW-Authenticate": schemes}, text=given or "")

    with httpx.Client(transport=httpx.MockTransport(server), auth=gss.ByTicket()) as client:
        assert client.get("http://rm/ws/v1/cluster/info").text == "Negotiate for rm"


class Library:
    """A GSSAPI that gives a name and a token and then fails. Notes what is released."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self._token = ctypes.create_string_buffer(b"token")

    def gss_import_name(self, _minor: Any, _given: Any, _kind: Any, name: Any) -> int:
        name._obj.value = 1
        return 0

    def gss_inquire_cred(self, _minor: Any, _cred: Any, name: Any, *_rest: Any) -> int:
        return self.gss_import_name(None, None, None, name)

    def gss_init_sec_context(self, *arguments: Any) -> int:
        token = arguments[-3]._obj
        token.length, token.value = 5, ctypes.addressof(self._token)
        return gss._FAILED

    def gss_display_name(self, *_arguments: Any) -> int:
        return gss._FAILED

    def gss_display_status(self, *_arguments: Any) -> int:
        return 0

    def gss_release_name(self, _minor: Any, name: Any) -> None:
        self.released += ["name"] if name._obj.value else []

    def gss_release_buffer(self, _minor: Any, buffer: Any) -> None:
        self.released += ["token"] if buffer._obj.value else []
        buffer._obj.value = None

    def gss_delete_sec_context(self, *_arguments: Any) -> None: ...


def test_what_a_failed_call_of_the_library_leaves_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(gss, "_library", lambda: library)
    with pytest.raises(NoTicket):
        gss.log_in()
    assert library.released == ["name", "name"]  # the second one of the sentence, which would name the user
    library.released.clear()
    with pytest.raises(NoTicket):
        gss.negotiate("nn1")
    assert sorted(library.released) == ["name", "name", "token"]


def test_a_renewal_that_fails_is_repeated_in_a_part_of_the_last_pause_and_survives_every_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [NotNow("no"), TypeError("odd"), OSError("no ticket"), ValueError("html")]
    waited: list[float] = []
    answers: list[float | Exception] = [240.0, *failures, 86_400.0, *failures, 86_400.0]

    def extend() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if not answers:
            threading.Event().wait()

    monkeypatch.setattr(namenodes, "time", SimpleNamespace(sleep=wait))
    namenodes.Renewal(extend, lambda: None)
    wait_until("the renewal ends", lambda: len(waited) == 11)
    assert waited == [120.0, *[30.0] * 4, 43_200.0, *[60.0] * 4, 43_200.0]
    lines = [each.getMessage() for each in caplog.records if each.name == "millrace.warehouse.storage"]
    assert len(lines) == 8
    assert lines[0] == "the delegation token of HDFS could not be renewed, and will be again: no"


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, text="<html>"), httpx.Response(200, json={"Token": None})]
)
def test_an_answer_without_a_token_is_a_temporary_failure(guarded: Guarded, answer: httpx.Response) -> None:
    def odd(request: httpx.Request) -> httpx.Response:
        return answer if request.url.params["op"] == "GETDELEGATIONTOKEN" else guarded(request)

    with pytest.raises(MillraceError, match=r"nn2:9870: its answer is no JSON with Token\.urlString"):
        storage_on(odd).names("")


def test_a_namenode_that_refuses_the_ticket_does_not_hide_a_good_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_ticket(host: str) -> str:
        if host == "nn1":
            raise NoTicket("Server HTTP/nn1 not found")
        return f"for {host}"

    monkeypatch.setattr(gss, "negotiate", no_ticket)
    assert storage_on(guarded).names("") == []


def test_the_end_of_a_process_cancels_a_token_that_no_task_has(guarded: Guarded) -> None:
    alone, driver = storage_on(guarded), storage_on(guarded)
    assert alone.names("") == driver.names("") == []
    pickle.dumps(driver)
    for storage in (alone, driver):
        nodes = storage._client._namenodes
        nodes._cancel(os.getpid() + 1)  # a forked process, which has the handler of its parent
        assert guarded.cancelled == []
    driver._client._namenodes._cancel(os.getpid())
    assert guarded.cancelled == []
    alone._client._namenodes._cancel(os.getpid())
    assert guarded.cancelled == ["secret1"]


def test_a_server_that_asks_for_something_else_gets_no_ticket(guarded: Guarded) -> None:
    asked: list[httpx.Request] = []

    def of_a_proxy(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(401, headers={"WWW-Authenticate": "Basic"}, text="who are you?")

    with httpx.Client(transport=httpx.MockTransport(of_a_proxy), auth=gss.ByTicket()) as client:
        assert client.get("http://rm/ws/v1/cluster/info").status_code == 401
    assert ["Authorization" in request.headers for request in asked] == [False]


def test_a_line_of_a_library_with_a_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="httpx"):
        logging.getLogger("httpx").info("HTTP Request: %s", httpx.URL("http://nn/?delegation=secret1"))
        logging.getLogger("httpx").info("HTTP Request: %s", httpx.URL("http://nn/?op=OPEN"))
    assert [record.getMessage() for record in caplog.records] == ["HTTP Request: http://nn/?op=OPEN"]
