"""OAUTHBEARER: which tokens count, and how the issuer's keys are fetched."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from millrace.config import OauthConfig
from millrace.errors import ConfigError
from millrace_broker.security import oauth
from millrace_broker.security.login import LoginFailed
from millrace_broker.security.oauth import MAX_BYTES, MAX_KEYS, BearerExchange, KeySet, parse_keys
from tests.certificates import Authority
from tests.support import wait_until
from tests.tokens import AUDIENCE, ISSUER, Issuer, key_server, message

CONFIG = OauthConfig(issuer=ISSUER, audience=AUDIENCE, jwks="https://issuer.test/keys")


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def keys_of(issuer: Issuer, **changed: Any) -> KeySet:
    keys = KeySet(CONFIG, lambda: json.dumps(issuer.key_set(**changed)).encode())
    assert keys.refresh()
    return keys


def user_of(said: bytes, keys: KeySet, config: OauthConfig = CONFIG) -> str | None:
    exchange = BearerExchange(config, keys)
    assert exchange.answer(said) == b""
    return exchange.user


def test_a_token_that_the_issuer_has_signed_says_who_its_client_is_and_for_how_long(issuer: Issuer) -> None:
    exchange = BearerExchange(CONFIG, keys_of(issuer))
    exchange.answer(message(issuer.token(lasts_s=100)))
    assert (exchange.user, exchange.listed, exchange.slow) == ("alice", False, True)
    assert exchange.until is not None
    assert 100 < exchange.until - time.time() <= 130


def test_another_claim_may_name_the_user(issuer: Issuer) -> None:
    config = OauthConfig(issuer=ISSUER, audience=AUDIENCE, jwks=CONFIG.jwks, principal_claim="client")
    assert user_of(message(issuer.token(client="web")), keys_of(issuer), config) == "web"


def test_what_kafka_clients_send_besides_changes_nothing(issuer: Issuer) -> None:
    said = b"n,a=alice,\1auth=Bearer " + issuer.token().encode() + b"\1logicalCluster=lkc-1\1\1"
    assert user_of(said, keys_of(issuer)) == "alice"


@pytest.mark.parametrize(
    "changed",
    [
        {"lasts_s": -60},
        {"nbf": 9_000_000_000},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://elsewhere.test/"},
        {"iss": None},
        {"exp": None},
        {"exp": float("inf")},
        {"exp": "soon"},
        {"headers": {"kid": "unknown"}},
        {"headers": {"kid": "../../etc/passwd"}},
        {"algorithm": "RS512"},
        {"algorithm": "PS256"},
        {"user": ""},
        {"user": "x" * 250},
        {"user": "new\nline"},
        {"sub": None, "client": "web"},
    ],
    ids=str,
)
def test_a_token_that_does_not_count_is_refused(issuer: Issuer, changed: dict[str, Any]) -> None:
    token = issuer.token(**changed)
    with pytest.raises(LoginFailed) as refused:
        user_of(message(token), keys_of(issuer))
    assert token.rpartition(".")[2] not in str(refused.value)


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """A token put together by hand, signed with a shared secret or not at all."""

    def encoded(part: bytes) -> bytes:
        return base64.urlsafe_b64encode(part).rstrip(b"=")

    signed = b".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
    signature = b"" if secret is None else hmac.digest(secret, signed, hashlib.sha256)
    return b".".join((signed, encoded(signature))).decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, "HS256", ["RS256"]])
def test_an_unsecured_token_and_one_signed_with_the_public_key_as_a_secret_are_refused(
    issuer: Issuer, algorithm: object
) -> None:
    public = issuer.private["first"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (None, pem):
        token = forged({"alg": algorithm, "typ": "JWT", "kid": "first"}, issuer.claims(), secret)
        with pytest.raises(LoginFailed):
            user_of(message(token), keys_of(issuer))


def test_a_token_of_another_key_under_the_same_id_is_refused(issuer: Issuer) -> None:
    with pytest.raises(LoginFailed):
        user_of(message(Issuer().token()), keys_of(issuer))


def test_a_changed_token_is_refused_wherever_it_was_changed(issuer: Issuer) -> None:
    token, keys = issuer.token(), keys_of(issuer)
    for at in range(0, len(token) - 1, 7):  # the last character may hold bits that nobody reads
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(LoginFailed):
            user_of(message(changed), keys)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"n,,",
        b"n,,\1\1",
        b"n,,\1auth=Basic eA==\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer x\1auth=Bearer y\1\1",
        b"y,,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer \xff\1\1",
        b"[" * 60_000,
        b"n,,\1auth=Bearer " + base64.urlsafe_b64encode(b"[" * 40_000) + b".e30.x\1\1",
    ],
    ids=range(11),
)
def test_a_message_without_a_token_is_refused(issuer: Issuer, said: bytes) -> None:
    with pytest.raises(LoginFailed):
        user_of(said, keys_of(issuer))


def test_who_wants_to_be_another_than_its_token_says_is_refused(issuer: Issuer) -> None:
    with pytest.raises(LoginFailed, match="which requests the identity of 'admin'"):
        user_of(message(issuer.token()).replace(b"n,,", b"n,a=admin,"), keys_of(issuer))


def test_a_key_that_is_for_another_algorithm_or_another_use_or_weak_signs_nothing(issuer: Issuer) -> None:
    for changed in ({"alg": "RS512"}, {"use": "enc"}):
        with pytest.raises(LoginFailed):
            user_of(message(issuer.token()), keys_of(issuer, **changed))
    weak = Issuer(bits=1024)
    assert not parse_keys(json.dumps(weak.key_set()).encode())
    secret = {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "first"}]}
    assert not parse_keys(json.dumps(secret).encode())
    unknown = {"keys": [{"kty": "new"}, 7, {"kid": "x"}, *issuer.key_set()["keys"]]}
    assert list(parse_keys(json.dumps(unknown).encode())) == ["first"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys": 7}', b'{"keys": [' + b"{}," * MAX_KEYS + b"{}]}"]
)
def test_what_is_no_key_set_changes_nothing(issuer: Issuer, body: bytes) -> None:
    answers = iter([json.dumps(issuer.key_set()).encode(), body])
    keys = KeySet(CONFIG, lambda: next(answers))
    assert keys.refresh()
    assert not keys.refresh()
    assert user_of(message(issuer.token()), keys) == "alice"


def test_keys_come_by_https_from_who_proves_to_be_the_issuer_only(issuer: Issuer, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with key_server(authority.issue("server")) as served:
        served.body = json.dumps(issuer.key_set()).encode()
        trusted = OauthConfig(issuer=ISSUER, audience=AUDIENCE, jwks=served.url, ca=authority.ca)
        keys = KeySet(trusted)
        assert keys.refresh()
        assert user_of(message(issuer.token()), keys) == "alice"
        assert not KeySet(
            OauthConfig(issuer=ISSUER, audience=AUDIENCE, jwks=served.url, ca=other.ca)
        ).refresh()
        served.body = b" " * (MAX_BYTES + 1)
        assert not keys.refresh()
        served.redirect, served.body = f"{served.url}/other", json.dumps(issuer.key_set()).encode()
        assert not KeySet(trusted).refresh()
    assert not keys.refresh()
    assert user_of(message(issuer.token()), keys) == "alice"
    with pytest.raises(ConfigError, match="by HTTPS"):
        OauthConfig(jwks="http://issuer.test/keys")


def test_a_key_that_is_not_known_has_the_set_fetched_again_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth, "MIN_INTERVAL_S", 0.5)
    issuer, fetched = Issuer(), list[float]()

    def fetch() -> bytes:
        fetched.append(time.monotonic())
        return json.dumps(issuer.key_set()).encode()

    keys = KeySet(CONFIG, fetch)
    keys.watch()
    wait_until("the first key", lambda: keys.key("first"))
    issuer.add_key("second")
    with pytest.raises(LoginFailed, match="no key 'second' is known"):
        user_of(message(issuer.token()), keys)
    wait_until("the second key", lambda: keys.key("second"))
    assert user_of(message(issuer.token()), keys) == "alice"
    before, end = len(fetched), time.monotonic() + 2
    while time.monotonic() < end:  # a stranger's
        assert keys.key("third") is None
        time.sleep(0.01)
    keys.stop()
    assert 0 < len(fetched) - before <= 5
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(fetched))
