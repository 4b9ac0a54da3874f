"""Logins by OAUTHBEARER: librdkafka gets in with tokens of the issuer and proves again in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import jwt
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import connected
from millrace.client.connection import Connection, ConnectionFailed
from millrace.client.login import LoginRefused
from millrace.config import ClientSecurity
from millrace.errors import ConfigError, ErrorCode
from millrace.wire import security_messages as messages
from tests.brokers import free_port, read_topic
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, start_broker
from tests.logins import authenticate, handshake, topics
from tests.support import Process, wait_until
from tests.tokens import AUDIENCE, ISSUER, Issuer, key_server, message

TOKEN_S = 4


@dataclass
class Site:
    """A broker that takes tokens; their issuer cannot be reached any more."""

    authority: Authority
    issuer: Issuer
    port: int
    broker: RunningBroker


@pytest.fixture(scope="module")
def site(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    folder = tmp_path_factory.mktemp("tokens")
    authority, issuer = Authority(folder), Issuer()
    server = authority.issue("server")
    port = free_port()
    with key_server(server) as keys:
        keys.body = json.dumps(issuer.key_set()).encode()
        settings: dict[str, Any] = {
            "listen": None,
            "tls.certificate": server.certificate,
            "tls.key": server.key,
            "oauth.issuer": ISSUER,
            "oauth.audience": AUDIENCE,
            "oauth.jwks": keys.url,
            "oauth.ca": authority.ca,
            "listeners.plain.listen": f"127.0.0.1:{free_port()}",
            "listeners.only.listen": f"127.0.0.1:{port}",
            "listeners.only.advertised": f"localhost:{port}",
            "listeners.only.protocol": "SASL_SSL",
            "listeners.only.mechanisms": ["OAUTHBEARER"],
        }
        broker = start_broker(start_for_module, zookeeper, folder, "tokens", **settings)
        wait_until("the keys", lambda: "fetched 1 keys" in broker.process.output)
    return Site(authority, issuer, port, broker)


@pytest.mark.slow
def test_our_own_clients_show_the_token_that_is_in_their_file_and_the_next_one_before_it_ends(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, issuer = site.authority, site.issuer
    file, next_file, at = tmp_path / "token", tmp_path / "next-token", f"localhost:{site.port}"
    client_file = tmp_path / "client.toml"
    names = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "ca": authority.ca, "token_file": "token"}
    client_file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in names.items()))
    monkeypatch.setenv("MILLRACE_CLIENT", str(client_file))
    told: list[object] = []

    def renew(lasts_s: float = TOKEN_S) -> None:
        next_file.touch(mode=0o600)
        next_file.write_text(issuer.token(lasts_s=lasts_s) + "\n")
        next_file.replace(file)

    renew()
    with ClusterClient(at) as client:
        client.create_topic("own", 1)
        producer = connected(confluent_kafka.Producer, {"bootstrap.servers": at, "acks": "all"})
        count, end = 0, time.monotonic() + 2.5 * TOKEN_S
        while time.monotonic() < end:
            renew()
            producer.produce("own", b"x", on_delivery=lambda error, _: told.append(error))
            count += 1
            producer.poll(0.05)
            assert client.broker_ids()
        assert producer.flush(30) == 0
        assert told == [None] * count
    renew(-100)
    with pytest.raises(LoginRefused, match=r"refuses the token in .*token: .*it may have ended"):
        ClusterClient(at).broker_ids()
    file.write_text("no token\n")
    with pytest.raises(ConfigError, match="has no token"):
        ClusterClient(at).broker_ids()


@pytest.mark.slow
def test_tokens_of_the_issuer_let_clients_in_for_as_long_as_they_count(site: Site) -> None:
    authority, issuer, port, broker = site.authority, site.issuer, site.port, site.broker
    topic = broker.create_topic("by-token", 1, flush_ms=5)
    given, errors, failed = list[float](), list[str](), list[object]()

    def token(_: str) -> tuple[str, float]:
        given.append(time.time())
        return issuer.token(lasts_s=TOKEN_S), time.time() + TOKEN_S

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.ca,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": token,
            "acks": "all",
            "error_cb": lambda error: errors.append(str(error)),
        }
    )
    count, end = 0, time.monotonic() + 2.5 * TOKEN_S
    while time.monotonic() < end:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
        count += 1
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert (errors, failed) == ([], [])
    assert len(given) > 1
    with broker.client() as client:
        assert len(read_topic(client, topic)[0].values) == count

    tls = ClientSecurity(protocol="SSL", ca=authority.ca)

    def said(data: bytes) -> messages.SaslAuthenticateResponse:
        with Connection("localhost", port, client_id="raw", timeout_s=20, security=tls) as connection:
            assert handshake(connection, "OAUTHBEARER").error_code == 0
            answer = authenticate(connection, data)
            if answer.error_code == 0:
                assert topics(connection) is not None
            return answer

    assert 0 < said(message(issuer.token(lasts_s=100))).session_lifetime <= 130_000
    unsecured = jwt.encode(issuer.claims(), None, "none", {"kid": "first"})  # type: ignore[arg-type]
    tokens = (unsecured, issuer.token(lasts_s=-100), issuer.token(aud="another"), Issuer().token())
    answers = {said(message(token)) for token in tokens}
    assert {answer.error_code for answer in answers} == {ErrorCode.SASL_AUTHENTICATION_FAILED}
    assert len(answers) == 1
    with Connection("localhost", port, client_id="raw", timeout_s=20, security=tls) as connection:
        handshake(connection, "OAUTHBEARER")
        assert authenticate(connection, message(issuer.token(lasts_s=-20))).error_code == 0  # 10 s of leeway

        def closed() -> bool:
            try:
                topics(connection)
            except ConnectionFailed:
                return True
            return False

        wait_until("the end of the login", closed)
    assert not [token for token in tokens if token.rpartition(".")[2] and token in broker.process.output]
