"""Passwords in URLs: shown nowhere, and given to HTTP clients apart from the URL."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import ConfigError, MillraceError
from millrace.urls import address_and_auth, without_secret
from millrace_airflow.hooks import millrace as hook
from millrace_audit.client import accept, completeness
from millrace_registry import client as registry


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:8081/a", "http://h:8081/a"),
        ("http://key:s3cret@h:8081", "http://***@h:8081"),
        ("http://s3cret@h", "http://***@h"),
        ("http://key:s3/cr@et@h/x", "http://***@h/x"),
        ("key:s3cret@h:8081", "***@h:8081"),
        ("postgresql://me:s3cret@h/db?sslpassword=s3cret", "postgresql://***@h/db?***"),
        ("sqlite:////var/lib/registry.db", "sqlite:////var/lib/registry.db"),
        ("/data/warehouse", "/data/warehouse"),
    ],
)
def test_a_url_is_shown_without_its_secret(url: str, shown: str) -> None:
    assert without_secret(url) == shown


def test_user_and_password_are_parted_from_the_address() -> None:
    assert address_and_auth("https://h:1/a?b=c") == ("https://h:1/a?b=c", None)
    assert address_and_auth("http://key:s3%2Fcret@h:1/a") == ("http://h:1/a", ("key", "s3/cret"))
    assert address_and_auth("http://token@[::1]:1") == ("http://[::1]:1", ("token", ""))


@pytest.mark.parametrize(
    "url",
    [
        "http://key:s3cret/x@h",
        "key:s3cret@h",
        "http://u:s3cret@",
        "ftp://u:s3cret@h",
        "http://u:s3cret@a..b",
        "http://u:s3cret@h\N{SNOWMAN}:1",
    ],
)
def test_what_is_no_url_is_refused_without_its_secret(url: str) -> None:
    for use in (address_and_auth, registry.SchemaRegistryClient, lambda url: accept(url, 1, "why")):
        with pytest.raises(ConfigError, match="is not a URL: write http") as refused:
            use(url)
        assert "s3cret" not in str(refused.value)


class _Teapot(BaseHTTPRequestHandler):
    """Answers nothing that anybody wants, and keeps who asked."""

    asked: list[str | None]

    def do_GET(self) -> None:
        self.asked.append(self.headers["authorization"])
        self.send_response(418)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def errors_of(url: str) -> list[str]:
    """Return the errors of every client of that URL when it belongs to another service."""
    day = datetime(2015, 5, 17, tzinfo=UTC)
    said = []
    with registry.SchemaRegistryClient(url) as client:
        for call in (
            lambda: client.schema(1),
            lambda: client.register("s", "int"),
            lambda: completeness(url, "T", day, day),
            lambda: accept(url, 1, "why"),
            lambda: hook._get(url, "auditor"),
        ):
            with pytest.raises(MillraceError) as error:
                call()
            said.append(str(error.value))
        assert client.address == url
        said.append(f"{client!r} {client.url}")
    ended = CliRunner().invoke(cli, ["schemas", "plan", "schemas", "--registry", url, "--json"])
    return [*said, f"{ended.output}{ended.exception}"]


def test_no_error_and_no_log_line_shows_the_password_that_is_sent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WAITS_S", ())
    caplog.set_level(logging.DEBUG)
    _Teapot.asked = []
    server = HTTPServer(("127.0.0.1", 0), _Teapot)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        said = errors_of(f"http://key:s3cret@127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    said += errors_of("http://key:s3cret@127.0.0.1:1")
    assert set(_Teapot.asked) == {"Basic a2V5OnMzY3JldA=="}
    assert all("127.0.0.1" in line for line in said)
    assert not any("s3cret" in line for line in [*said, *caplog.messages])
