"""Attacks of strangers, and of the holder of a small token, on the ports of registry and auditor.

Half handshakes by the thousand, silent connections, trickled bodies, JSON of a million lists. Meanwhile an
honest client asks again and again by a connection of its own each time, and must be answered. Memory must
come back. Numbers are counts and resident memory, never the clock.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.service.access import add_entry
from millrace.service.connections import MAX_UNPROVEN
from tests.bench.replay import rss_bytes
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.support import Process, wait_until
from tests.trials.attack.run import MORE_MEMORY_BYTES, Outcome

HALF_HANDSHAKES = 3_000
TRICKLING = 60
CLOSED_WITHIN_S = 60.0
"""A connection on which too little comes is closed within this time, also on a busy machine."""
HOSTILE_JSON = {
    "a million lists": b'{"ignored": [' + b"[]," * 999_990 + b"[]]}",
    "lists in lists": b'{"ignored": ' + b"[" * 1_500_000 + b"]" * 1_499_000 + b"}",
    "objects in objects": b'{"ignored": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}",
    "one long number": b'{"ignored": ' + b"9" * 2_900_000 + b"}",
}


@dataclass(frozen=True)
class Service:
    """A service with TLS and tokens; `honest` asks `path`, and a body may be sent to `takes_bodies`."""

    name: str
    process: Process
    address: str
    ca: str
    honest: str
    hostile: str
    path: str
    takes_bodies: str

    @property
    def port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


@contextmanager
def registry(folder: Path) -> Iterator[Service]:
    """A registry that knows an honest client and one that may only read."""
    with ExitStack() as stack:
        options = ["--database-url", f"sqlite:///{folder}/registry.db"]
        yield _service(stack, folder, ["registry", *options], ["read"], "/subjects", "/subjects/any")


@contextmanager
def auditor(folder: Path) -> Iterator[Service]:
    """An auditor with a broker, a ZooKeeper and a registry of its own, which serve everybody."""
    with ExitStack() as stack:

        def start(*command: str) -> Process:
            process = Process([*command])
            stack.callback(process.kill)
            return process

        zookeeper = start("zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper").ready()
        broker = start_broker(start, zookeeper, folder, "offline")
        broker.create_topic(OFFLINE_AUDIT_TOPIC, 1)
        database = f"sqlite:///{folder}/registry.db"
        schemas = start("registry", "--listen", "127.0.0.1:0", "--database-url", database).ready()
        options = ["--bootstrap", broker.bootstrap, "--zookeeper", zookeeper, "--origins", "dc1"]
        options += ["--registry", f"http://{schemas}", "--database-url", f"sqlite:///{folder}/audit.db"]
        yield _service(stack, folder, ["auditor", *options], ["read", "accept"], "/v1/topics", "/v1/accept")


def _service(
    stack: ExitStack, folder: Path, command: Sequence[str], roles: Sequence[str], path: str, takes_bodies: str
) -> Service:
    authority = Authority(folder)
    certificate, access = authority.issue("server"), folder / "access.toml"
    honest, hostile = (add_entry(access, client, roles) for client in ("honest", "hostile"))
    doors = ["--access", str(access), "--certificate", certificate.certificate, "--key", certificate.key]
    process = Process([*command, "--listen", "localhost:0", *doors])
    stack.callback(process.kill)
    address = process.ready()
    return Service(command[0], process, address, authority.ca, honest, hostile, path, takes_bodies)


class HonestClient(threading.Thread):
    """Asks by a new connection each time; `failures` says what it met instead of an answer."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._tls = ssl.create_default_context(cafile=service.ca)
        self._ended = threading.Event()
        self.answers, self.failures = 0, list[str]()

    def run(self) -> None:
        service = self._service
        while not self._ended.wait(0.05):
            try:
                shown = {"authorization": f"Bearer {service.honest}"}
                url = f"https://{service.address}{service.path}"
                if (answer := httpx.get(url, headers=shown, verify=self._tls, timeout=20)).is_error:
                    self.failures.append(f"{answer.status_code} {answer.text}")
                self.answers += 1
            except httpx.HTTPError as error:
                self.failures.append(repr(error))

    def end(self) -> None:
        self._ended.set()
        self.join(60)


class Strangers:
    """Attacks one service, and adds to an outcome what that shows."""

    def __init__(self, service: Service, outcome: Outcome) -> None:
        self._service, self._outcome = service, outcome
        self._tls = ssl.create_default_context(cafile=service.ca)
        self._honest = HonestClient(service)
        self._honest.start()
        self._wait_for_an_answer("the first requests")
        self._resident = rss_bytes(service.process.pid)

    def _wait_for_an_answer(self, what: str) -> None:
        answered = self._honest.answers
        try:
            wait_until("an answer", lambda: self._honest.answers > answered + 1, timeout_s=20)
        except AssertionError:
            self._outcome.failures.append(f"{self._service.name}, {what}: the honest client has no answer")

    def attack(self, half_handshakes: int = HALF_HANDSHAKES) -> None:
        """All of it."""
        self.hold_half_handshakes(half_handshakes)
        self.stay_silent(2 * MAX_UNPROVEN)
        self.trickle_bodies(TRICKLING)
        self.send_hostile_json()
        self.check_memory()
        self._honest.end()
        self._outcome.failures += [f"{self._service.name}, honest: {each}" for each in self._honest.failures]

    def hold_half_handshakes(self, count: int) -> None:
        """Open connections that stop in the middle of a handshake, or behind their first message."""
        with self._held("half handshakes") as held:
            for number in range(count):
                hello = self._hello()
                self._open(held, hello if number % 2 else hello[: len(hello) // 2])

    def stay_silent(self, count: int) -> None:
        """Shake hands, send half the head of a request, and no more."""
        with self._held("silent connections") as held:
            for _ in range(count):
                self._send(held, b"GET / HTTP/1.1\r\nHost: ")

    def trickle_bodies(self, count: int) -> None:
        """Show a token, promise a body, and send a byte of it."""
        with self._held("trickled bodies") as held:
            for number in range(count):
                token = self._service.hostile if number % 2 else "guess"
                self._send(held, self._head(token, 60_000) + b"{")

    def send_hostile_json(self) -> None:
        """Send bodies that are dear to read for their size, several at once, by one token."""
        for what, body in HOSTILE_JSON.items():
            answers: list[int] = []

            def send(body: bytes = body, answers: list[int] = answers) -> None:
                with contextlib.suppress(OSError), socket.create_connection(self._service.port, 60) as raw:
                    raw.settimeout(60)
                    with self._tls.wrap_socket(raw, server_hostname=self._service.port[0]) as connection:
                        connection.sendall(self._head(self._service.hostile, len(body)))
                        with contextlib.suppress(OSError):
                            connection.sendall(body)
                        line = connection.recv(15)
                        answers.append(int(line.split()[1]))

            senders = [threading.Thread(target=send) for _ in range(6)]
            for sender in senders:
                sender.start()
            self._wait_for_an_answer(what)
            for sender in senders:
                sender.join()
            self._outcome.requests += len(senders)
            if not all(400 <= status < 500 for status in answers):
                self._outcome.failures.append(f"{self._service.name}, {what}: answered {answers}")

    def check_memory(self) -> None:
        """Memory is back, but for what a heap keeps."""

        def more() -> int:
            return rss_bytes(self._service.process.pid) - self._resident

        with contextlib.suppress(AssertionError):  # then it has more, and that is said
            wait_until("memory", lambda: more() < MORE_MEMORY_BYTES, timeout_s=30)
        print(f"{self._service.name}: {more() / 1e6:+.1f} MB after the attack", flush=True)
        if more() >= MORE_MEMORY_BYTES:
            self._outcome.failures.append(f"{self._service.name}: {more() / 1e6:.0f} MB more than before")

    @contextmanager
    def _held(self, what: str) -> Iterator[list[socket.socket]]:
        """Connections that are all kept open until each of them is closed by the service."""
        held: list[socket.socket] = []
        try:
            yield held
            self._wait_for_an_answer(what)
            for connection in held:
                self._wait_for_end(connection, what)
            self._outcome.requests += len(held)
        finally:
            for connection in held:
                connection.close()

    def _open(self, held: list[socket.socket], data: bytes) -> None:
        connection = socket.create_connection(self._service.port, timeout=CLOSED_WITHIN_S)
        held.append(connection)
        with contextlib.suppress(OSError):
            connection.sendall(data)

    def _send(self, held: list[socket.socket], data: bytes) -> None:
        raw = socket.create_connection(self._service.port, timeout=CLOSED_WITHIN_S)
        try:
            connection = self._tls.wrap_socket(raw, server_hostname=self._service.port[0])
            held.append(connection)
            connection.sendall(data)
        except OSError:  # one too many
            raw.close()

    def _head(self, token: str, length: int) -> bytes:
        return (
            f"POST {self._service.takes_bodies} HTTP/1.1\r\nHost: {self._service.address}\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n"
        ).encode()

    def _hello(self) -> bytes:
        """The first message of a client of TLS."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._tls.wrap_bio(incoming, outgoing, server_hostname=self._service.port[0])
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return outgoing.read()

    def _wait_for_end(self, connection: socket.socket, what: str) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            self._outcome.failures.append(f"{self._service.name}: {what} are still open")
        except OSError:
            pass


def attack_services(folder: Path, half_handshakes: int = HALF_HANDSHAKES) -> Outcome:
    """Attack a registry, then an auditor, each of its own."""
    outcome = Outcome()
    for place, start in (("registry", registry), ("auditor", auditor)):
        (folder / place).mkdir()
        with start(folder / place) as service:
            Strangers(service, outcome).attack(half_handshakes)
    return outcome


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(attack_services(Path(name), int(sys.argv[1])).failures, indent=1))
