"""Attacks of strangers on a listener with TLS and logins: half handshakes by the thousand, records cut and
changed at every byte, and the requests of `tests.trials.attack.requests` before a login.

Meanwhile a user logs in again and again by TLS, who must always get in. What counts is, as in `run`, the
broker's CPU time and memory, never the clock.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.client.connection import Connection as OwnConnection
from millrace.config import ClientSecurity, TlsConfig
from millrace.errors import MillraceError
from millrace.security.certificates import client_context
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from tests.bench.replay import cpu_seconds, rss_bytes
from tests.brokers import free_port
from tests.certificates import Authority
from tests.support import Process, wait_until
from tests.trials.attack.requests import frame
from tests.trials.attack.run import MORE_MEMORY_BYTES, Attack, Connection, Outcome

HALF_HANDSHAKES = 5_000
CPU_S_PER_STRANGER = 0.005
"""A whole handshake takes a broker about a millisecond."""
BYTES_PER_HANDSHAKE = 100_000
"""Memory of a connection that is in the middle of it."""
MAX_UNAUTHENTICATED = 400
AUTHENTICATION_MS = 2_000
_CLUSTER, _USER = "attacked", "honest"
_REQUEST = frame(ApiKey.API_VERSIONS, 0, b"")
_IGNORED_BYTE = 2
"""Position in a client's first record of its lower version, which nobody looks at (RFC 8446, section 5.1)."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True)
class Guarded:
    """A broker with a plain listener, and one where clients use TLS and log in."""

    process: Process
    plain: str
    guarded: str
    tls: ssl.SSLContext
    user: ClientSecurity


@contextmanager
def guarded_broker(folder: Path) -> Iterator[Guarded]:
    """A broker with a ZooKeeper of its own, and one user."""
    authority = Authority(folder)
    server, password = authority.issue("server"), folder / "password"
    password.touch(mode=0o600)
    password.write_text("attacked in vain")
    plain, guarded = (f"localhost:{free_port()}" for _ in range(2))
    config = folder / "broker.toml"
    with ExitStack() as stack:
        zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper"])
        stack.callback(zookeeper.kill)
        config.write_text(
            f'broker_id = 1\ncluster = "{_CLUSTER}"\nzookeeper = "{zookeeper.ready()}"\n'
            f'log_dir = "{folder}/logs"\nmax_unauthenticated = {MAX_UNAUTHENTICATED}\n'
            f"authentication_ms = {AUTHENTICATION_MS}\n"
            f'[listeners.plain]\nlisten = "{plain}"\n'
            f'[listeners.guarded]\nlisten = "{guarded}"\nprotocol = "SASL_SSL"\n'
            f'[tls]\ncertificate = "{server.certificate}"\nkey = "{server.key}"\n'
        )
        session = Session.connect(zookeeper.ready())
        try:
            Users(session, _CLUSTER).set_password(_USER, password.read_text())
        finally:
            session.close()
        broker = Process(["broker", str(config)])
        stack.callback(broker.kill)
        broker.ready()
        user = ClientSecurity(protocol="SASL_SSL", ca=authority.ca, user=_USER, password_file=str(password))
        yield Guarded(broker, plain, guarded, client_context(TlsConfig(ca=authority.ca)), user)


def attack_before_login(
    folder: Path,
    chosen: Sequence[tuple[int, int]],
    *,
    rounds: int,
    seed: int,
    half_handshakes: int = HALF_HANDSHAKES,
    step: int = 1,
    long_lists: bool = True,
) -> Outcome:
    """All of it against a broker of its own; records are cut and changed at every `step`th byte."""
    with guarded_broker(folder) as place:
        stranger = partial(Connection, place.guarded, place.tls)
        attack = Attack(place.plain, place.process.pid, seed, stranger)
        outcome = attack.run(chosen, rounds, long_lists=long_lists)
        strangers = Strangers(place, outcome)
        strangers.hold_half_handshakes(half_handshakes)
        strangers.note_memory("the half handshakes", MAX_UNAUTHENTICATED * BYTES_PER_HANDSHAKE)
        strangers.hold_half_handshakes(2 * MAX_UNAUTHENTICATED)
        for version in _VERSIONS:
            strangers.cut_records(version, step)
        strangers.end()
        strangers.note_memory("all that came behind them", MORE_MEMORY_BYTES)
    return outcome


class HonestUser(threading.Thread):
    """Logs in by TLS and asks once, again and again; `failures` says what it met instead of an answer."""

    def __init__(self, place: Guarded) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._ended = threading.Event()
        self.answers, self.failures = 0, list[str]()

    def run(self) -> None:
        host, _, port = self._place.guarded.rpartition(":")
        while not self._ended.wait(0.05):
            try:
                with OwnConnection(
                    host, int(port), client_id="honest", timeout_s=20, security=self._place.user
                ) as connection:
                    connection.request(ApiKey.METADATA, 1, bytes(4), timeout_s=20)
                self.answers += 1
            except MillraceError as error:
                self.failures.append(str(error))

    def end(self) -> None:
        self._ended.set()
        self.join(60)


class Strangers:
    """Attacks the handshake of one broker, and adds to an outcome what that shows."""

    def __init__(self, place: Guarded, outcome: Outcome) -> None:
        self._place, self._outcome = place, outcome
        self._pid = place.process.pid
        host, _, port = place.guarded.rpartition(":")
        self._host, self._address = host, (host, int(port))
        self._resident = rss_bytes(self._pid)
        self._honest = HonestUser(place)
        self._honest.start()
        wait_until("the user gets in", lambda: self._honest.answers or self._honest.failures)

    def hold_half_handshakes(self, count: int) -> None:
        """Open so many connections that stop in the middle of their first message, and keep them all open."""
        answered, before = self._honest.answers, self._cpu()
        connections = []
        try:
            for _ in range(count):
                hello = self._client()[1].read()
                connection = socket.create_connection(self._address, timeout=20)
                connections.append(connection)
                connection.sendall(hello[: len(hello) // 2])
            wait_until("the user gets in", lambda: self._honest.answers > answered + 1, timeout_s=20)
            for connection in connections:
                self._wait_for_end(connection)
        finally:
            for connection in connections:
                connection.close()
        self._count(f"{count} half handshakes", count, before, answered)

    def cut_records(self, version: str, step: int) -> None:
        """End a conversation behind each byte that a client sends in it, and change each byte of another."""
        length = len(self._converse(version))
        for what, change in (("cut", False), ("changed", True)):
            answered, before = self._honest.answers, self._cpu()
            for at in range(0, length, step):
                self._converse(version, at, change=change)
            places = len(range(0, length, step))
            self._count(f"TLS {version} {what} at {places} of {length} bytes", places, before, answered)

    def _converse(self, version: str, at: int | None = None, *, change: bool = False) -> bytes:
        """Shake hands and ask once; with `at` send only the bytes before it, or change that byte."""
        client, outgoing, incoming = self._client(version)
        sent, got = b"", object()
        with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def send() -> None:
                nonlocal sent
                data = bytearray(outgoing.read())
                behind = None if at is None else at - len(sent)
                sent += data
                if behind is None or not 0 <= behind < len(data):
                    connection.sendall(data)
                elif change:
                    data[behind] ^= 0xFF
                    connection.sendall(data)
                else:
                    connection.sendall(data[:behind])
                    connection.shutdown(socket.SHUT_WR)

            def receive() -> None:
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                incoming.write(data)

            for work in (client.do_handshake, lambda: client.write(_REQUEST), lambda: client.read(1)):
                while True:
                    try:
                        got = work()
                        send()
                        break
                    except ssl.SSLWantReadError:
                        send()
                        receive()
        if at not in (None, _IGNORED_BYTE) and isinstance(got, bytes) and got:
            what = "changed" if change else "the last"
            self._outcome.failures.append(f"TLS {version} with byte {at} {what} was answered")
        return sent

    def _client(self, version: str = "1.3") -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """A client of TLS in memory that has its first message ready: it, what it sends, what it receives."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._place.user.ca)
        context.minimum_version = context.maximum_version = _VERSIONS[version]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname=self._host)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return client, outgoing, incoming

    def _wait_for_end(self, connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            self._outcome.failures.append("a half handshake is still open after 20 s")

    def _cpu(self) -> tuple[float, int]:
        return cpu_seconds(self._pid), self._honest.answers

    def _count(self, what: str, strangers: int, before: tuple[float, int], answered: int) -> None:
        """Compare what it took with what it may, the user's logins in the same time included."""
        outcome = self._outcome
        took, logins = cpu_seconds(self._pid) - before[0], self._honest.answers - before[1] + 1
        outcome.requests += strangers
        if took > CPU_S_PER_STRANGER * (strangers + 4 * logins):
            outcome.failures.append(f"{what}: {took:.1f} s of CPU")
        try:
            wait_until("an answer", lambda: self._honest.answers > answered, timeout_s=20)
        except AssertionError:
            outcome.failures.append(f"{what}: the user has got no answer since they began")
        print(f"{what}: {took / strangers * 1e3:.2f} ms of CPU each, {logins} logins meanwhile", flush=True)

    def end(self) -> None:
        """End the user's logins, and add what went wrong with them."""
        self._honest.end()
        self._outcome.failures += [f"the user: {failure}" for failure in self._honest.failures]

    def note_memory(self, what: str, allowed: int) -> None:
        """Compare the memory that something has left behind with what it may; a heap keeps its high mark."""
        before, self._resident = self._resident, rss_bytes(self._pid)
        if (more := self._resident - before) >= allowed:
            self._outcome.failures.append(f"{more / 1e6:.0f} MB more memory than before {what}")
