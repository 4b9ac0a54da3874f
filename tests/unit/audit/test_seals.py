"""Seals and signatures, which an attacker without the key or the secret cannot forge."""

from __future__ import annotations

import hashlib

from millrace_audit.reports.seals import is_signed, new_key, seal_of, sign, signed_turn
from millrace_audit.reports.turns import Seat, Turn


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
