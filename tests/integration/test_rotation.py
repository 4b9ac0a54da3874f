"""Certificate, authority, passwords and rights are changed while clients write and read: nothing is lost."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from cryptography import x509

from millrace.client.confluent import connected
from millrace.client.connection import Connection
from millrace.client.login import LoginRefused
from millrace.config import TlsConfig
from millrace.security.certificates import client_context
from millrace.security.client import VARIABLE, load_client
from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.users import Users
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation, ResourceType
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.support import Process, wait_until

TOPIC, GROUP, CLUSTER = "kept", "readers", "rotating"


def rule(user: str, operation: Operation, type_: ResourceType, name: str, pattern: Pattern) -> Rule:
    return Rule(type_, pattern, name, f"User:{user}", "*", operation, True)


def rules(pattern: Pattern, topic: str) -> set[Rule]:
    """Return the rules that both users need."""
    return {
        rule("writer", Operation.WRITE, ResourceType.TOPIC, topic, pattern),
        rule("reader", Operation.READ, ResourceType.TOPIC, topic, pattern),
        rule("reader", Operation.READ, ResourceType.GROUP, GROUP, Pattern.LITERAL),
    }


@dataclass
class Traffic:
    """A producer with acks=all and a consumer of its topic, each in a thread, until the block ends."""

    folder: Path
    bootstrap: str
    sent: list[bytes] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    read: dict[bytes | None, None] = field(default_factory=dict)
    """Each once: what was not committed before a connection ended is read again."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _all_read: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traffic]:
        producer = self._client(
            monkeypatch, "writer", confluent_kafka.Producer, {"enable.idempotence": True, "linger.ms": 1}
        )
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest"}
        consumer = self._client(monkeypatch, "reader", confluent_kafka.Consumer, settings)
        threads = [
            threading.Thread(target=work, args=(client,), daemon=True)
            for work, client in ((self._write, producer), (self._read, consumer))
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
            self._ended.set()
            threads[0].join(60)
            assert producer.flush(60) == 0
            wait_until("all is read", lambda: len(self.read) >= len(self.acknowledged))
        finally:
            self._ended.set()
            self._all_read.set()
            for thread in threads:
                thread.join(60)
            consumer.close()

    def _client(
        self, monkeypatch: pytest.MonkeyPatch, user: str, kind: Callable[..., Any], settings: dict[str, Any]
    ) -> Any:
        monkeypatch.setenv(VARIABLE, str(self.folder / f"{user}.toml"))
        soon = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
        return connected(kind, {"bootstrap.servers": self.bootstrap, **soon, **settings})

    def _write(self, producer: Any) -> None:
        def done(error: Any, message: Any) -> None:
            if error:
                self.failed.append(str(error))
            else:
                self.acknowledged.append(message.value())

        while not self._ended.is_set():
            self.sent.append(str(len(self.sent)).encode())
            producer.produce(TOPIC, self.sent[-1], on_delivery=done)
            producer.poll(0.01)

    def _read(self, consumer: Any) -> None:
        consumer.subscribe([TOPIC])
        while not self._all_read.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read[message.value()] = None

    def goes_on(self, count: int = 50) -> None:
        """Wait until so many more messages are written, and what is written now is read."""
        written = len(self.acknowledged) + count
        wait_until("more is written", lambda: len(self.acknowledged) >= written or self.failed)
        wait_until("it is read", lambda: len(self.read) >= written or self.failed)


def test_nothing_is_lost_and_no_client_stops_while_everything_that_is_secret_changes(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    server, later = old.issue("server"), new.issue("later")
    ca = tmp_path / "both.pem"
    ca.write_bytes(Path(old.ca).read_bytes() + Path(new.ca).read_bytes())
    session = Session.connect(zookeeper)
    users, acls = Users(session, CLUSTER), AclStore(session, CLUSTER)
    acls.change(lambda _: rules(Pattern.LITERAL, TOPIC))

    def give(user: str, password: str) -> None:
        users.set_password(user, password)
        file = tmp_path / f"{user}.password"
        file.touch(mode=0o600)
        file.write_text(password)

    port = free_port()
    for user in ("writer", "reader"):
        give(user, "the first")
        (tmp_path / f"{user}.toml").write_text(
            f'protocol = "SASL_SSL"\nca = "both.pem"\nuser = "{user}"\npassword_file = "{user}.password"\n'
        )
    settings: dict[str, Any] = {
        "listen": None,
        "tls.certificate": server.certificate,
        "tls.key": server.key,
        "listeners.plain.listen": f"127.0.0.1:{free_port()}",
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.advertised": f"localhost:{port}",
        "listeners.only.protocol": "SASL_SSL",
        "security.authorizer": True,
        "security.super_users": ["User:ANONYMOUS"],
    }
    broker = start_broker(start, zookeeper, tmp_path, CLUSTER, **settings)
    broker.create_topic(TOPIC, 1, flush_ms=5)

    def gets_in(user: str, password: str) -> bool:
        """Tell whether a new connection gets in with the password."""
        file = tmp_path / "tried.password"
        file.touch(mode=0o600)
        file.write_text(password)
        security = dataclasses.replace(load_client(str(tmp_path / f"{user}.toml")), password_file=str(file))
        try:
            Connection("localhost", port, client_id="tried", timeout_s=10, security=security).close()
        except LoginRefused:
            return False
        return True

    with Traffic(tmp_path, f"localhost:{port}").running(monkeypatch) as traffic:
        traffic.goes_on()
        for source, target in ((later.certificate, server.certificate), (later.key, server.key)):
            staged = Path(target).with_suffix(".staged")
            shutil.copy(source, staged)
            staged.replace(target)
        broker.process.signal(signal.SIGHUP)
        wait_until("the new certificate", lambda: serial(port, new.ca) == later.serial)
        traffic.goes_on()
        for user in ("writer", "reader"):
            give(user, "the second")
            wait_until("the new password", partial(gets_in, user, "the second"))
            assert not gets_in(user, "the first")
        traffic.goes_on()
        before, after = rules(Pattern.LITERAL, TOPIC), rules(Pattern.PREFIXED, TOPIC[:2])
        acls.change(lambda _: before | after)
        acls.change(lambda _: after)
        traffic.goes_on()
        # Until here open connections went on. Now every client has to come again, as the files say now.
        assert broker.process.stop() == 0
        broker.process = start("broker", str(broker.config))
        broker.process.ready()
        traffic.goes_on()
    session.close()
    assert not traffic.failed
    assert list(traffic.read) == traffic.acknowledged == traffic.sent


def serial(port: int, ca: str) -> int | None:
    """Return the serial of a new connection's certificate; None while the authority's do not count."""
    context = client_context(TlsConfig(ca=ca))
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as tls,
        ):
            certificate = tls.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError:
        return None
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number
