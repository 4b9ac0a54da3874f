"""The server's side of SCRAM, with scramp's client: who proves a password, and what others can find out."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest
from scramp import ScramClient

from millrace.errors import ConfigError
from millrace_broker.security.login import Login, LoginFailed
from millrace_broker.security.scram import (
    MECHANISMS,
    Credential,
    ScramExchange,
    make_credential,
    scram_mechanisms,
)

USERS = {"alice": {name: make_credential(name, "wonderland", 4096) for name in MECHANISMS}}
SECRET = b"the cluster's own"


def find(name: str) -> Mapping[str, Credential] | None:
    return USERS.get(name)


def exchange(mechanism: str = "SCRAM-SHA-256", secret: bytes = SECRET) -> ScramExchange:
    return ScramExchange(mechanism, find, secret)


def log_in(server: ScramExchange, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> str | None:
    client = ScramClient([mechanism], user, password)
    client.set_server_first(server.answer(client.get_client_first().encode()).decode())
    client.set_server_final(server.answer(client.get_client_final().encode()).decode())
    return server.user


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_who_knows_the_password_is_in_and_knows_the_broker(mechanism: str) -> None:
    server = exchange(mechanism)
    assert server.user is None
    assert log_in(server, "alice", "wonderland", mechanism) == "alice"


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wonderlanD"), ("bob", "wonderland"), ("alice,n", "x")]
)
def test_a_wrong_password_and_an_unknown_user_fail_at_the_proof(user: str, password: str) -> None:
    server = exchange()
    with pytest.raises(LoginFailed):
        log_in(server, user, password)
    assert server.user is None


def challenge(user: str, secret: bytes = SECRET) -> tuple[int, str]:
    """The length of the salt and the salt, as a stranger is told them."""
    first = exchange(secret=secret).answer(
        ScramClient(["SCRAM-SHA-256"], user, "x").get_client_first().encode()
    )
    salt = dict(part.split("=", 1) for part in first.decode().split(","))["s"]
    return len(base64.b64decode(salt)), salt


def test_an_unknown_user_is_challenged_always_alike_and_nobody_can_compute_it() -> None:
    assert challenge("bob") == challenge("bob")
    assert challenge("bob") != challenge("carol")
    assert challenge("bob") != challenge("bob", b"another cluster's")


def test_the_shape_of_a_challenge_does_not_tell_users_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(USERS, "dora", {"SCRAM-SHA-256": make_credential("SCRAM-SHA-256", "x")})

    def shape(user: str) -> tuple[int, str]:
        first = exchange().answer(ScramClient(["SCRAM-SHA-256"], user, "x").get_client_first().encode())
        parts = dict(part.split("=", 1) for part in first.decode().split(","))
        return len(base64.b64decode(parts["s"])), parts["i"]

    assert shape("dora") == shape("nobody")


def test_a_user_who_is_deleted_during_the_exchange_is_not_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(USERS, "dora", USERS["alice"])
    server, client = exchange(), ScramClient(["SCRAM-SHA-256"], "dora", "wonderland")
    client.set_server_first(server.answer(client.get_client_first().encode()).decode())
    monkeypatch.delitem(USERS, "dora")
    with pytest.raises(LoginFailed, match="the user does not exist"):
        server.answer(client.get_client_final().encode())
    assert server.user is None


@pytest.mark.parametrize(
    ("first", "final"),
    [
        (b"", b""),
        (b"n,,n=alice,r=", b""),
        (b"\xff\xfe", b""),
        (b"p=tls-unique,,n=alice,r=abc", b""),
        (b"n,a=root,n=alice,r=abc", b""),
        (b"n,,n=alice,r=abc", b""),
        (b"n,,n=alice,r=abc", b"c=biws,r=abc,p=AAAA"),
        (b"n,,n=alice,r=abc", b"c=eSws,r={nonce},p=" + base64.b64encode(bytes(32))),
        (b"n,,n=alice,r=abc", b"c=biws,r={nonce},p=" + base64.b64encode(bytes(32))),
        (b"n,,n=alice,r=abc", b"c=biws,r={nonce},p=" + base64.b64encode(bytes(64))),
        (b"n,,n=alice,r=abc", b"c=biws,r={nonce},p="),
        (b"n,,n=alice,r=abc", b"c=biws,r={nonce}"),
    ],
)
def test_what_is_no_proof_fails_and_never_with_another_error(first: bytes, final: bytes) -> None:
    server = exchange()

    def talk() -> None:
        told = server.answer(first)
        nonce = told.split(b",")[0].removeprefix(b"r=")
        server.answer(final.replace(b"{nonce}", nonce))

    with pytest.raises(LoginFailed):
        talk()
    assert server.user is None


def test_a_proof_that_was_overheard_is_of_no_use() -> None:
    first = exchange()
    client = ScramClient(["SCRAM-SHA-256"], "alice", "wonderland")
    heard = client.get_client_first().encode()
    client.set_server_first(first.answer(heard).decode())
    proof = client.get_client_final().encode()
    assert first.answer(proof)
    again = exchange()
    again.answer(heard)
    with pytest.raises(LoginFailed):
        again.answer(proof)


def test_an_exchange_is_over_after_its_proof() -> None:
    server = exchange()
    log_in(server, "alice", "wonderland")
    with pytest.raises(LoginFailed):
        server.answer(b"n,,n=alice,r=abc")


def test_a_login_that_has_failed_hears_nothing_more() -> None:
    login = Login(scram_mechanisms(["SCRAM-SHA-256"], find, SECRET))
    login.begin("SCRAM-SHA-256")
    assert login.may_ask()
    login.failed = True
    assert not login.may_ask()
    assert (login.take(), login.may_begin) == (None, False)


def test_what_is_kept_of_a_password_is_salted_and_bounded() -> None:
    one, other = (make_credential("SCRAM-SHA-512", "wonderland") for _ in range(2))
    assert one.salt != other.salt
    assert one.stored_key != other.stored_key
    assert b"wonderland" not in one.stored_key + one.server_key + one.salt
    for iterations in (4095, 1_000_001):
        with pytest.raises(ConfigError, match="iterations"):
            make_credential("SCRAM-SHA-256", "x", iterations)
    with pytest.raises(ConfigError, match="the password is empty"):
        make_credential("SCRAM-SHA-256", "")
    with pytest.raises(ConfigError, match="the password cannot be used"):
        make_credential("SCRAM-SHA-256", "\x07")
