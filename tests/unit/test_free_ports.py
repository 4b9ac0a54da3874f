"""What tests rely on when they start several servers at once."""

from __future__ import annotations

import random

import pytest

from tests.brokers import free_port


def test_a_port_is_given_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [number for number in range(31_000, 31_200) for _ in range(3)]
    monkeypatch.setattr(random, "randrange", lambda low, high: numbers.pop(0))
    assert len({free_port() for _ in range(5)}) == 5
