"""Fingerprints, seals and signatures: what an attacker without the key or the secret cannot make."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from millrace_audit.reports.seals import fingerprint, is_signed, new_key, seal_of, sign, signed_turn, wrapped
from millrace_audit.reports.turns import Seat, Turn


def test_a_fingerprint_is_what_other_languages_compute() -> None:
    assert fingerprint(b"") == 0xEF46DB3751D8E999, "XXH64 of nothing, as its specification says"
    assert fingerprint(memoryview(b"Nobody inspects the spammish repetition")) == 0xFBCEA83C8A378BF1


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_a_sum_of_fingerprints_does_not_depend_on_where_it_is_wrapped(values: list[int]) -> None:
    total = 0
    for value in values:
        total = wrapped(total + value)
    assert total == wrapped(sum(values))
    assert -(1 << 63) <= total < 1 << 63


def test_only_the_key_opens_the_seal() -> None:
    key = new_key()
    assert seal_of(key) == hashlib.sha256(key).digest()
    assert new_key() != key


def test_a_signature_holds_for_one_turn_one_secret_and_one_value() -> None:
    key = sign(7, b"secret", b"value")
    assert signed_turn(key) == 7
    assert is_signed(key, b"secret", b"value")
    assert not is_signed(key, b"secret", b"another")
    assert not is_signed(key, b"guessed", b"value")
    assert [signed_turn(other) for other in (None, b"", key[:-1], key + b"x")] == [None] * 4


def test_a_turn_is_read_back_from_its_node() -> None:
    turn = Turn(number=12, secret=b"\0\xff", cluster_id="c", host="h", pid=3, began=1)
    assert Turn.decode("turn-0000000012", turn.encode()) == turn


def test_the_name_of_a_tier_cannot_leave_its_folder() -> None:
    assert Seat.of("../x", "offline").turns == "/audit/turns/..%2Fx/..%2Fx"
    assert Seat.of("offline", "dc 1").holder == "/audit/holders/dc%201/offline"
