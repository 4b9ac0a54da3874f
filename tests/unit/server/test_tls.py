"""TLS in the loop: any cut of its bytes, bad and slow handshakes, who a client is, certificates that change.

What the loop does for clients in general is shown over TLS by test_server.py, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from millrace.config import ClientLimits, TlsConfig
from millrace.errors import ConfigError
from millrace.records.file_slice import FileSlice
from millrace.security import certificates
from millrace.security.certificates import ServerCertificates, client_context, server_context
from millrace_broker.security.rights import ANONYMOUS
from millrace_broker.server.transport import MAX_OWN_BYTES, SEAL_BYTES, TlsFailed, TlsTransport
from millrace_broker.storage.chain import LogFile
from tests.certificates import Authority, Issued
from tests.support import wait_until
from tests.unit.server.serving import LIMITS, Client, Running, listening_with_tls

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SECRET = b"nobody else may read this"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def config(authority: Authority) -> TlsConfig:
    issued = authority.issue("server")
    return TlsConfig(certificate=issued.certificate, key=issued.key, ca=authority.ca)


@pytest.fixture
def start(config: TlsConfig) -> Iterator[Callable[..., Running]]:
    """Starts a loop whose listener uses TLS; it ends with the test."""
    started: list[Running] = []

    def start(client_certificates: str = "none", limits: ClientLimits = LIMITS, **changes: Any) -> Running:
        listener = listening_with_tls(dataclasses.replace(config, **changes), client_certificates)
        started.append(Running(limits, listener, client_context(TlsConfig(ca=config.ca))))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def answers(client: Client) -> bool:
    client.send(1)
    return client.receive() == (1, b"-text-")


# The transport by itself: bytes in, bytes out.


class Pair:
    """A transport and a client of it in memory; what lies between them is handed over by the test."""

    def __init__(self, config: TlsConfig, version: str) -> None:
        context = client_context(TlsConfig(ca=config.ca))
        context.minimum_version = context.maximum_version = VERSIONS[version]
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        server, self._wire = socket.socketpair()
        for end in (server, self._wire):
            end.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        space = memoryview(bytearray(SEAL_BYTES))
        self.transport = TlsTransport(server, server_context(config, "none"), space)
        self.received = b""
        self.seen_on_wire = b""
        self._target = memoryview(bytearray(64 << 10))

    def client_bytes(self, work: Callable[[], object]) -> bytes:
        """Return the bytes that the client sends when it does `work` as far as it can."""
        with contextlib.suppress(ssl.SSLWantReadError):
            work()
        return self._outgoing.read()

    def deliver(self, data: bytes) -> None:
        """Let the server receive these bytes at once, and the client whatever it says to them."""
        self._wire.sendall(data)
        while True:
            try:
                count = self.transport.receive_into(self._target)
            except BlockingIOError:
                break
            self.received += self._target[:count]
            if not self.transport.unread:
                break
        self.take()

    def take(self) -> bytes:
        """Hand over what the server has sent."""
        try:
            data = self._wire.recv(1 << 20)
        except BlockingIOError:
            return b""
        self.seen_on_wire += data
        self._incoming.write(data)
        return data

    def shake_hands(self, deliver: Callable[[bytes], None]) -> None:
        while True:
            data = self.client_bytes(self.client.do_handshake)
            if not data:
                return
            deliver(data)

    def close(self) -> None:
        self.transport.close()
        self._wire.close()


@pytest.fixture(params=list(VERSIONS))
def pair(config: TlsConfig, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(config, request.param)
    yield made
    made.close()


def test_bytes_that_come_one_by_one_are_the_same_bytes(pair: Pair) -> None:
    def one_by_one(data: bytes) -> None:
        for byte in data:
            assert not pair.received
            pair.deliver(bytes([byte]))

    pair.shake_hands(one_by_one)
    assert pair.transport.secure
    one_by_one(pair.client_bytes(lambda: pair.client.write(SECRET)))
    assert pair.received == SECRET


def test_records_do_not_depend_on_where_the_network_cuts(pair: Pair) -> None:
    pair.shake_hands(pair.deliver)
    cut, size = 0, 1
    while cut < size:
        pair.received = b""
        data = pair.client_bytes(lambda: [pair.client.write(SECRET + b"%d" % n) for n in range(3)])
        size = len(data)
        pair.deliver(data[:cut])
        assert not pair.transport.unread, "what is not whole has to wait for the socket"
        pair.deliver(data[cut:])
        assert pair.received == b"".join(SECRET + b"%d" % n for n in range(3))
        cut += 1


def test_what_is_sent_arrives_whole_however_little_the_socket_takes_and_nothing_of_it_is_plain(
    pair: Pair, tmp_path: Path
) -> None:
    pair.shake_hands(pair.deliver)
    data = (SECRET * 40_000)[: 3 * SEAL_BYTES + 5]
    path = tmp_path / "file"
    path.write_bytes(data)
    part = FileSlice(LogFile(path, 0), 7, len(data) - 7)
    got, left, position = b"", memoryview(data), part.position
    while len(got) < 2 * len(data) - 7:
        try:
            if left:
                left = left[pair.transport.send(left, more=True) :]
            elif position < len(data):
                position += pair.transport.send_file(FileSlice(part.file, position, 1 << 20), 1 << 20)
            else:
                pair.transport.flush()
        except BlockingIOError:
            assert pair.transport.unsent
        assert pair.transport.held <= SEAL_BYTES + 10_000
        pair.take()
        try:
            while piece := pair.client.read(1 << 16):
                got += piece
        except ssl.SSLWantReadError:
            pass
    assert got == data + data[7:]
    assert SECRET[:8] not in pair.seen_on_wire


def test_a_client_that_has_tls_talk_and_takes_nothing_is_refused_and_one_that_takes_it_is_not(
    pair: Pair,
) -> None:
    pair.shake_hands(pair.deliver)

    def have_tls_talk(*, takes: bool) -> None:
        for _ in range(2 * MAX_OWN_BYTES // 100):
            pair.transport._outgoing.write(bytes(100))  # as OpenSSL does when it gets a KeyUpdate
            pair._wire.sendall(pair.client_bytes(lambda: pair.client.write(b"x")))
            pair.transport.receive_into(pair._target)
            if takes:
                pair.take()

    have_tls_talk(takes=True)
    with pytest.raises(TlsFailed, match="does not receive"):
        have_tls_talk(takes=False)
    assert pair.transport.held <= MAX_OWN_BYTES


def test_no_file_reaches_the_socket_by_sendfile(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    path.write_bytes(SECRET * 100_000)
    monkeypatch.setattr(os, "sendfile", None)
    running = start()
    file = LogFile(path, 0)
    running.serve = lambda request, text: request.answer([b"head", FileSlice(file, 0, 2_000_000)])
    client = running.client()
    client.send(1)
    assert client.receive() == (1, b"head" + (SECRET * 100_000)[:2_000_000])
    client.close()


# The loop.


def test_a_client_that_takes_no_answers_is_not_read_any_more_and_holds_little(
    start: Callable[..., Running],
) -> None:
    running = start()
    running.serve = lambda request, text: request.answer([bytes(100_000)])
    greedy = running.client()
    greedy.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while len(running.requests) < 2000:
            greedy.send(1, bytes(10_000))
    assert len(running.requests) < 2000
    other = running.client()
    other.send(1)
    assert other.receive()[0] == 1
    assert running.server.admission.held < LIMITS.max_queued_bytes + (1 << 20)
    greedy.close()
    other.close()


@pytest.mark.parametrize("size", [60_000, 200_000])  # sent at the end of a turn, and at once
def test_the_end_of_an_answer_that_the_socket_did_not_take_follows_by_itself(
    start: Callable[..., Running], size: int
) -> None:
    running = start()
    client = running.client()
    assert answers(client)

    def narrow() -> None:
        (fd,) = running.server.connections
        with socket.socket(fileno=os.dup(fd)) as accepted:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    running.on_loop(narrow)
    running.serve = lambda request, text: request.answer([bytes(size)])
    client.send(7)
    assert client.receive() == (7, bytes(size))


def test_a_large_request_and_many_small_ones_are_read_to_the_end(start: Callable[..., Running]) -> None:
    running = start()
    running.serve = lambda request, text: request.answer([b"%d" % len(text)])
    client = running.client()
    client.send(7, bytes(900_000))
    assert client.receive() == (7, b"900000")
    client.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"data" for n in range(5000)))
    assert [client.receive()[0] for _ in range(5000)] == list(range(5000))
    client.close()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (struct.pack(">ihhi", 8, 18, 0, 1), "it does not use TLS, which this listener requires"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP"),
        (b"\x16\x03\x01\x00\x05\x99\x00\x00\x01\x00", "TLS with it failed"),
    ],
)
def test_what_is_no_tls_is_closed_and_one_line_says_so(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    running = start()
    with socket.create_connection(("127.0.0.1", running.listener.port), timeout=10) as stranger:
        stranger.sendall(sent)
        with stranger.makefile("rb") as answer:
            assert b"-text-" not in answer.read()
    wait_until("a line", lambda: caplog.records)
    assert [said in record.message for record in caplog.records] == [True]
    assert answers(running.client())


def test_tls_to_a_plain_listener_is_closed_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    with (
        socket.create_connection(("127.0.0.1", running.listener.port), timeout=10) as stranger,
        pytest.raises(OSError),  # noqa: PT011  # what it is called is OpenSSL's business
    ):
        ssl.create_default_context().wrap_socket(stranger, server_hostname="localhost")
    running.stop()
    assert ["it uses TLS, which this listener does not" in r.message for r in caplog.records] == [True]


def test_an_old_version_is_refused(start: Callable[..., Running], caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):  # noqa: PT011
        Client(running.listener.port, tls=old)
    wait_until("a line", lambda: caplog.records)
    assert "no version of TLS that is new enough" in caplog.text


def test_no_version_below_the_one_that_is_set_is_spoken(start: Callable[..., Running]) -> None:
    running = start(min_version="1.3")
    assert running.tls is not None
    running.tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):  # noqa: PT011
        running.client()


def test_nothing_is_negotiated_again(start: Callable[..., Running]) -> None:
    running = start()
    command = ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{running.listener.port}"]
    said = subprocess.run(command, input=b"R\n", capture_output=True, timeout=30, check=False)
    assert b"RENEGOTIATING" in said.stdout + said.stderr
    assert b"no renegotiation" in said.stdout + said.stderr


def test_handshakes_that_are_not_finished_are_closed_in_time_and_beyond_a_number_the_oldest_first(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(LIMITS, max_unauthenticated=5, authentication_ms=60_000)
    running = start(limits=limits)
    port = running.listener.port
    half = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(20)]
    for one in half:
        one.sendall(b"\x16\x03\x01")
    assert answers(running.client()), "who is quick gets in"
    wait_until("the oldest are closed", lambda: running.server.admission.closed_unauthenticated >= 15)
    assert answers(running.client())
    monkeypatch.setattr(running.server, "_limits", dataclasses.replace(limits, authentication_ms=1))
    wait_until("all are closed", lambda: running.server.admission.closed_unauthenticated == 20)
    assert "max_unauthenticated" in caplog.text
    assert "authentication_ms" in caplog.text
    for one in half:
        one.close()


def test_who_has_shaken_hands_is_not_closed_for_it(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(LIMITS, max_unauthenticated=1, authentication_ms=60_000)
    running = start(limits=limits)
    clients = []
    for _ in range(4):
        clients.append(running.client())
        assert answers(clients[-1])
    monkeypatch.setattr(running.server, "_limits", dataclasses.replace(limits, authentication_ms=1))
    threading.Event().wait(1.2)  # a look at who is late comes every second
    assert all(answers(client) for client in clients)


# Who a client is.


def identified(running: Running, client: Client) -> str:
    assert answers(client)
    return running.requests[-1].client.access.principal


def with_certificate(running: Running, issued: Issued) -> Client:
    assert running.tls is not None
    running.tls.load_cert_chain(issued.certificate, issued.key)
    return running.client()


OPS = [
    (NameOID.COUNTRY_NAME, "SE"),
    (NameOID.ORGANIZATIONAL_UNIT_NAME, "ops"),
    (NameOID.COMMON_NAME, "Mirror"),
]


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (["DEFAULT"], "User:CN=Mirror,OU=ops,C=SE"),
        (["RULE:^CN=(.*?),OU=ops.*$/$1/L", "DEFAULT"], "User:mirror"),
        (["RULE:^CN=(.*?),OU=web.*$/$1/", "RULE:CN=(\\w+),.*/ops-$1/U"], "User:OPS-MIRROR"),
    ],
)
def test_a_client_is_who_its_certificate_says_by_the_first_rule_that_takes_it(
    start: Callable[..., Running], authority: Authority, rules: list[str], name: str
) -> None:
    running = start("required", principal_rules=tuple(rules))
    client = with_certificate(running, authority.issue("mirror", subject=OPS))
    assert identified(running, client) == name
    client.close()


def test_a_certificate_makes_nobody_anonymous(start: Callable[..., Running], authority: Authority) -> None:
    running = start("required", principal_rules=("RULE:CN=(.*)/$1/",))
    client = with_certificate(running, authority.issue("ANONYMOUS"))
    client.send(1)
    assert client.at_end()
    assert not running.requests


def test_a_certificate_that_no_rule_takes_is_refused(
    start: Callable[..., Running], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    running = start("required", principal_rules=("RULE:CN=broker,.*/broker/",))
    client = with_certificate(running, authority.issue("mirror", subject=OPS))
    client.send(1)
    assert client.at_end()
    assert "no principal rule matches its certificate, 'CN=Mirror,OU=ops,C=SE'" in caplog.text
    assert not running.requests


@pytest.mark.parametrize("mode", ["none", "wanted"])
def test_who_shows_no_certificate_is_anonymous_where_none_is_required(
    start: Callable[..., Running], mode: str
) -> None:
    running = start(mode)
    assert identified(running, running.client()) == ANONYMOUS


def refused(running: Running, connect: Callable[[], Client]) -> bool:
    """With TLS 1.3 a client hears of it only behind its own handshake."""
    try:
        client = connect()
        client.send(1)
        return client.at_end()
    except OSError:
        return True


def test_who_shows_no_certificate_is_refused_where_one_is_required(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = start("required")
    assert refused(running, running.client)
    wait_until("a line", lambda: caplog.records)
    assert "it shows no certificate, which this listener requires" in caplog.text
    assert not running.requests


@pytest.mark.parametrize("mode", ["wanted", "required"])
def test_a_certificate_of_another_authority_and_an_expired_one_are_refused(
    start: Callable[..., Running],
    authority: Authority,
    tmp_path: Path,
    mode: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("client")
    running = start(mode)
    assert refused(running, lambda: with_certificate(running, stranger))
    assert refused(running, lambda: with_certificate(running, authority.issue("old", days=-1)))
    wait_until("two lines", lambda: len(caplog.records) == 2)
    assert "its certificate is not accepted: certificate has expired" in caplog.text
    assert not running.requests


# Certificates that change.


def serial_of(running: Running) -> int:
    client = running.client()
    assert isinstance(client.socket, ssl.SSLSocket)
    certificate = client.socket.getpeercert()
    assert certificate
    client.close()
    return int(str(certificate["serialNumber"]), 16)


def put(issued: Issued, config: TlsConfig) -> None:
    shutil.copy(issued.key, config.key)
    shutil.copy(issued.certificate, config.certificate)


def test_new_connections_get_a_certificate_that_was_replaced_and_old_ones_go_on(
    authority: Authority, config: TlsConfig, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Running]
) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.05)
    running = start()
    watched = running.listener.certificates
    assert watched is not None
    watched.watch()
    old = running.client()
    renewed = authority.issue("renewed")
    put(renewed, config)
    wait_until("the new one", lambda: serial_of(running) == renewed.serial)
    assert answers(old)
    watched.stop()


def test_certificates_that_cannot_be_used_change_nothing(
    authority: Authority, config: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ServerCertificates(config, ["none"])
    context = kept.context("none")
    for issued in (authority.issue("other"), authority.issue("old", days=-1)):
        Path(config.certificate).write_bytes(Path(issued.certificate).read_bytes())
        kept.read_again()
        assert kept.context("none") is context
    Path(config.certificate).unlink()
    kept.read_again()
    assert kept.context("none") is context
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3
    put(authority.issue("again"), config)
    kept.read_again()
    assert kept.context("none") is not context


def test_a_key_with_a_password_is_read_with_it_and_never_asked_for(
    authority: Authority, tmp_path: Path
) -> None:
    issued = authority.issue("locked", password=b"open sesame")
    config = TlsConfig(certificate=issued.certificate, key=issued.key)
    with pytest.raises(ConfigError, match="cannot use certificate"):
        server_context(config, "none")
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("open sesame\n")
    server_context(dataclasses.replace(config, key_password_file=str(password)), "none")


def test_a_certificate_may_stand_behind_its_key_in_their_file(authority: Authority, tmp_path: Path) -> None:
    issued, both = authority.issue("behind"), tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_text(Path(issued.key).read_text() + Path(issued.certificate).read_text())
    assert ServerCertificates(TlsConfig(certificate=str(both)), ["none"]).expires > time.time()


def test_what_cannot_be_a_certificate_is_one_line_that_says_what_to_do(
    authority: Authority, config: TlsConfig, tmp_path: Path
) -> None:
    def fails(match: str, **changes: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            server_context(dataclasses.replace(config, **changes), "required")

    old, other = authority.issue("old", days=-1), authority.issue("other")
    fails(r"old.pem expired at 20.* UTC: renew it", certificate=old.certificate, key=old.key)
    fails("KEY_VALUES_MISMATCH", key=other.key)
    fails("cannot read the key .*: No such file", key=str(tmp_path / "none"))
    fails("cannot use certificate .*: No such file", certificate=str(tmp_path / "none"))
    fails("cannot use ca .*: No such file", ca=str(tmp_path / "none"))
    Path(config.key).chmod(0o640)
    fails("can be read by others: chmod 600")


def test_the_transport_says_why_tls_failed(pair: Pair) -> None:
    with pytest.raises(TlsFailed, match="does not use TLS"):
        pair.deliver(b"no TLS at all")


def test_only_the_files_that_are_named_are_watched(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    issued = authority.issue("server")
    certificates = ServerCertificates(TlsConfig(certificate=issued.certificate, key=issued.key), ["none"])
    before = certificates.watched_files()
    (folder / "other").touch()
    os.utime(folder, (1, 1))
    assert certificates.watched_files() == before
