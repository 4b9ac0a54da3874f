"""Tokens and HTTPS of the services, as processes: who shows none is told so, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.support import Process

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
    assert httpx.get(f"https://{address}/healthz").status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}/healthz")
    assert web not in process.output
    assert reader not in process.output


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
