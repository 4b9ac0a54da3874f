"""Tokens and HTTPS of the services, as processes: who shows none is told so, and nothing else."""

from __future__ import annotations

import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]
SCHEMA = {"type": "record", "name": "Event", "fields": []}


def token(file: Path, name: str, *roles: str) -> str:
    command = [sys.executable, "-m", "millrace.cli", "access", "add", str(file), name, *roles]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_registry_with_tokens_and_https_serves_its_clients_by_their_urls(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server")
    file = tmp_path / "access.toml"
    web, reader = token(file, "web", "read", "register:web-*"), token(file, "reader", "read")
    process = start(
        "registry",
        *("--listen", "localhost:0", "--database-url", f"sqlite:///{tmp_path}/registry.db"),
        *("--access", str(file), "--certificate", server.certificate, "--key", server.key),
    )
    address = process.ready()
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca)

    with SchemaRegistryClient(f"https://web:{web}@{address}") as client:
        schema_id = client.register("web-clicks", SCHEMA)
        with pytest.raises(MillraceError, match="lacks the role register for subject 'orders'"):
            client.register("orders", SCHEMA)
    with SchemaRegistryClient(f"https://reader:{reader}@{address}") as client:
        assert client.schema(schema_id)["name"] == "Event"
        with pytest.raises(MillraceError, match="lacks the role register"):
            client.register("web-clicks", SCHEMA)
    for stranger in (f"https://{address}", f"https://web:{reader}@{address}"):
        with SchemaRegistryClient(stranger) as client, pytest.raises(MillraceError, match="token"):
            client.schema(schema_id)
    shown = {b"authorization": b"Basic \xe9"}
    assert httpx.get(f"https://{address}/subjects", headers=shown).status_code == 401
    assert httpx.get(f"https://{address}/healthz").status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}/healthz")
    assert web not in process.output
    assert reader not in process.output
    assert "Traceback" not in process.output


@pytest.mark.slow
def test_strangers_who_say_nothing_do_not_keep_a_services_clients_out(start: Start, tmp_path: Path) -> None:
    registry = start(
        "registry", *("--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/registry.db")
    )
    address = registry.ready()
    resource.prlimit(registry.pid, resource.RLIMIT_NOFILE, (100, 100))
    host, _, port = address.rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(150)]
    for stranger in strangers[::2]:
        stranger.sendall(b"GET /subjects HTTP/1.1\r\nHost: ")

    def is_served() -> bool:
        try:
            return httpx.get(f"http://{address}/subjects", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until("an answer to who asks", is_served)
    for stranger in strangers:
        stranger.close()


def served(url: str, token: str, ca: str) -> tuple[int, int, object]:
    """Return the answers of `/metrics` without and with the token, and of `/healthz` without it."""
    with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=ca)) as client:
        stranger = client.get("/metrics")
        known = client.get("/metrics", headers={"authorization": f"Bearer {token}"})
        assert ("millrace_" in known.text, "millrace_" in stranger.text) == (True, False)
        return stranger.status_code, known.status_code, client.get("/healthz").json()


def test_metrics_of_broker_reader_and_agent_speak_https_and_want_a_token(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    authority, file, port = Authority(tmp_path), tmp_path / "access.toml", free_port()
    server, shown = authority.issue("server"), token(file, "prometheus", "metrics")
    settings = {
        "metrics_listen": f"127.0.0.1:{port}",
        "metrics_access": str(file),
        "metrics_tls": True,
        "tls.certificate": server.certificate,
        "tls.key": server.key,
    }
    broker = start_broker(start, zookeeper, tmp_path, "encrypted", 1, **settings)
    assert served(f"https://127.0.0.1:{port}", shown, authority.ca) == (401, 200, {"healthy": True})
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")
    with ClusterClient(broker.bootstrap) as client:
        for topic in ("audit", "t"):
            client.create_topic(topic, 1)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db")
    places = ["--cluster", "encrypted", "--bootstrap", broker.bootstrap]
    places += ["--registry", f"http://{registry.ready()}"]
    door = ("--access", str(file), "--certificate", server.certificate, "--key", server.key)
    at = f"127.0.0.1:{free_port()}"
    start("audit-reader", *places, "--zookeeper", zookeeper, "--metrics-listen", at, *door).ready()
    assert served(f"https://{at}", shown, authority.ca) == (401, 200, {"healthy": True})

    writes = token(file, "shop", "write:t")
    spool = ("--service", "shop", "--spool", str(tmp_path / "spool"), "--listen", "127.0.0.1:0")
    agent = start("agent", *places, *spool, *door).ready()
    assert served(f"https://{agent}", shown, authority.ca) == (401, 200, {"healthy": True})
    with httpx.Client(
        base_url=f"https://{agent}", verify=ssl.create_default_context(cafile=authority.ca)
    ) as shop:
        for topic, known, answered in (
            ("t", writes, 404),
            ("audit", writes, 403),
            ("t", shown, 403),
            ("t", "guess", 401),
        ):
            headers = {"authorization": f"Bearer {known}"}
            said = shop.post(f"/v1/topics/{topic}/events", json=[], headers=headers)
            assert said.status_code == answered, said.text
    for option in ("--access", "--certificate"):
        done = run_millrace("audit-reader", *places, "--zookeeper", zookeeper, option, str(file))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_a_service_takes_a_new_certificate_without_a_restart(start: Start, tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    issued = first.issue("service")
    process = start(
        "registry",
        *("--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/registry.db"),
        *("--certificate", issued.certificate, "--key", issued.key),
    )
    address = process.ready()

    def proves_itself_by(authority: Authority) -> bool:
        try:
            context = ssl.create_default_context(cafile=authority.ca)
            return httpx.get(f"https://{address}/healthz", verify=context).status_code == 200
        except httpx.ConnectError:
            return False

    assert (proves_itself_by(first), proves_itself_by(second)) == (True, False)
    with httpx.Client(
        base_url=f"https://{address}", verify=ssl.create_default_context(cafile=first.ca)
    ) as open_one:

        def goes_on() -> bool:  # asked often: a service closes a connection that is idle for 5 s
            return open_one.get("/healthz").status_code == 200

        assert goes_on()
        second.issue("service")  # over the old files
        wait_until("it is taken", lambda: goes_on() and proves_itself_by(second))
        assert goes_on()
    assert not proves_itself_by(first)


def test_a_broker_tells_its_numbers_to_who_shows_a_token(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    file, port = tmp_path / "access.toml", free_port()
    shown, other = token(file, "prometheus", "metrics"), token(file, "other", "read")
    settings = {"metrics_listen": f"127.0.0.1:{port}", "metrics_access": str(file)}
    start_broker(start, zookeeper, tmp_path, "counted", 1, **settings)
    url = f"http://127.0.0.1:{port}"
    numbers = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {shown}"})
    assert numbers.status_code == 200
    assert "millrace" in numbers.text
    for headers in ({}, {"authorization": f"Bearer {other}"}, {"authorization": "Bearer guess"}):
        refused = httpx.get(f"{url}/metrics", headers=headers)
        assert refused.status_code == 401
        assert "millrace_" not in refused.text
    assert httpx.get(f"{url}/healthz").json() == {"healthy": True}
    told = httpx.get(f"{url}/healthz", headers={"authorization": f"Bearer {shown}"})
    assert told.json() == {"healthy": True, "problems": []}
