"""A slow or silent client at the port of metrics keeps no other from being answered."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from millrace.service import monitoring
from millrace.service.monitoring import MAX_REQUESTS_OF_ADDRESS, MonitoringServer
from tests.support import wait_until


@pytest.fixture
def server() -> Iterator[MonitoringServer]:
    made = MonitoringServer(
        "127.0.0.1:0", "metrics_listen", CollectorRegistry(auto_describe=False), lambda: (True, {})
    )
    made.start()
    yield made
    made.close()


def connect(server: MonitoringServer) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10)
    client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
    return client


def is_cut_off(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_of_too_many_requests_of_an_address_the_oldest_is_cut_off(server: MonitoringServer) -> None:
    slow = [connect(server) for _ in range(MAX_REQUESTS_OF_ADDRESS)]
    with urllib.request.urlopen(f"{server.url}/healthz", timeout=10) as answer:
        assert json.load(answer) == {"healthy": True}
    assert is_cut_off(slow[0])
    slow[-1].sendall(b"x\r\n\r\n")
    assert slow[-1].recv(8) == b"HTTP/1.0", "the youngest goes on"
    for client in slow:
        client.close()


def test_a_request_that_comes_byte_by_byte_ends_in_time(
    server: MonitoringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "REQUEST_TIMEOUT_S", 0.5)
    before = threading.active_count()
    client = connect(server)

    def is_closed() -> bool:
        try:
            client.sendall(b"a")
        except OSError:
            return True
        return False

    wait_until("it is cut off", is_closed, timeout_s=9)
    wait_until("its thread has ended", lambda: threading.active_count() <= before)
    client.close()


@pytest.mark.parametrize("path", ["healthz", "metrics"])
def test_no_answer_is_taken_for_another_kind_than_it_says(server: MonitoringServer, path: str) -> None:
    with urllib.request.urlopen(f"{server.url}/{path}", timeout=10) as answer:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
