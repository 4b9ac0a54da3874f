"""An object store that lets two writers in, and addresses of object stores; the rest is in tests/objects."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.history.layout import Topic, check_topic
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.objects import ObjectStorage, settings_of
from tests.support import REPOSITORY


class SmallS3(ThreadingHTTPServer):
    """As much of S3 as taking a name needs; `careless` ignores the condition, `proud` refuses any.

    `forgetful` lists what it says it has not.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.kind = kind
        self.deletes = 0
        self.objects: dict[str, bytes] = {}
        self.listed_all: list[str] = []
        """Prefixes below which every object was listed."""


class _Requests(BaseHTTPRequestHandler):
    server: SmallS3
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        key, content = self._key, self.rfile.read(int(self.headers["Content-Length"]))
        condition = self.headers["If-None-Match"] is not None
        if condition and self.server.kind == "proud":
            return self._answer(501, b"<Error><Message>If-None-Match is not implemented.</Message></Error>")
        if condition and self.server.kind == "good" and key in self.server.objects:
            return self._answer(412)
        self.server.objects[key] = content
        return self._answer(200)

    def do_GET(self) -> None:
        if "list-type" in self.path:
            asked = parse_qs(urlsplit(self.path).query)
            prefix = asked.get("prefix", [""])[0]
            if "delimiter" not in asked:
                self.server.listed_all.append(prefix)
            found = "".join(
                f"<Contents><Key>{key}</Key><Size>{len(content)}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key, content in sorted(self.server.objects.items())
                if key.startswith(prefix)
            )
            return self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
        if self._key not in self.server.objects:
            return self._answer(404)
        return self._answer(200, self.server.objects[self._key])

    def do_POST(self) -> None:
        """Delete everything that the test may have made."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.deletes += 1
        if self.server.kind == "forgetful" and self.server.deletes < 1_000:
            return self._answer(404)
        self.server.objects = {key: value for key, value in self.server.objects.items() if "/." not in key}
        return self._answer(200, b"<DeleteResult><Deleted><Key>all</Key></Deleted></DeleteResult>")

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    with SmallS3(request.param) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        server.block_on_close = False
        yield server
        server.shutdown()
        thread.join()


def opened() -> ObjectStorage:
    return ObjectStorage("s3://bucket/w", settings_of("s3://bucket/w"), patience_s=2.0)


@pytest.mark.parametrize("store", ["careless"], indirect=True)
def test_a_store_that_ignores_the_condition_is_refused_before_anything_counts(store: SmallS3) -> None:
    for _ in range(2):
        with pytest.raises(MillraceError, match=r"ignores `If-None-Match: \*` .*: take a store") as error:
            opened().create("loads/1", b"mine")
        assert "\n" not in str(error.value)
    assert store.objects == {}


@pytest.mark.parametrize("store", ["proud"], indirect=True)
def test_a_store_that_refuses_the_condition_is_refused_in_its_own_words(store: SmallS3) -> None:
    with pytest.raises(MillraceError, match="If-None-Match is not implemented"):
        opened().create("loads/1", b"mine")
    assert store.objects == {}


@pytest.mark.parametrize("store", ["good"], indirect=True)
def test_a_store_that_keeps_the_condition_is_tried_once(store: SmallS3) -> None:
    storage = opened()
    assert storage.create("loads/1", b"mine")
    store.kind = "careless"
    assert storage.create("loads/2", b"mine")
    assert store.objects == {"w/loads/1": b"mine", "w/loads/2": b"mine"}


@pytest.mark.parametrize("store", ["forgetful"], indirect=True)
def test_a_store_that_lists_what_it_has_not_is_asked_with_pauses_and_not_for_ever(store: SmallS3) -> None:
    store.objects["w/t/a"] = b"1"
    with pytest.raises(MillraceError, match=r"cannot delete s3://bucket/w/t: it is listed"):
        opened().delete("t")
    assert store.deletes < 20


def test_variables_that_no_store_knows_are_left_out_and_credentials_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_PROFILE": "mine",
        "AWS_PAGER": "less",
    }.items():
        monkeypatch.setenv(name, value)
    settings = settings_of("s3://bucket/w")
    assert settings["aws_secret_access_key"] == "hidden"
    assert not {"aws_profile", "aws_pager"} & settings.keys()
    assert "hidden" not in repr(ObjectStorage("s3://bucket/w", settings))


def test_an_address_that_no_store_understands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"SecretAccessKey: check the address and AWS_\*") as error:
        open_storage("s3://bucket/w")
    assert "\n" not in str(error.value)


def test_without_obstore_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from millrace_warehouse.storage import open_storage\n"
        "open_storage('/tmp')\n"
        "open_storage('s3://bucket/w')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{REPOSITORY}/broker:{REPOSITORY}/plugins"},
    )
    assert ended.stderr.rstrip().endswith("needs obstore: pip install 'millrace-pipeline[objects]'")


@pytest.mark.parametrize("store", ["good"], indirect=True)
def test_a_topic_is_checked_without_a_list_of_all_its_objects(store: SmallS3) -> None:
    check_topic(Topic(opened(), "PageView"))
    assert store.listed_all == []
