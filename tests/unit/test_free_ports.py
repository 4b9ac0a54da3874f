"""Free ports that tests rely on when they start several servers at once."""

from __future__ import annotations

import random

import pytest

from tests.brokers import free_port
from tests.support import run_python


def test_a_port_is_given_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [number for number in range(31_000, 31_200) for _ in range(3)]
    monkeypatch.setattr(random, "randrange", lambda low, high: numbers.pop(0))
    assert len({free_port() for _ in range(5)}) == 5


def test_a_port_that_one_test_run_has_is_not_given_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(31_200, 31_400))
    monkeypatch.setattr(random, "randrange", lambda low, high: numbers.pop(0))
    port = free_port()
    another = f"import random; n = [{port}] * 3 + [0]; random.randrange = lambda *_: n.pop(0)"
    done = run_python("-c", f"{another}\nfrom tests.brokers import free_port\nfree_port(); print(len(n))")
    assert done.stdout == "0\n", done.stderr
