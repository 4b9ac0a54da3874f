"""A limit of bytes per second: never more in any time than its share of it and a little, and never a stop."""

from __future__ import annotations

import random

import pytest

from millrace_broker.allowance import Allowance
from tests.support import Clock

ANSWER = 4 << 20


def test_without_a_limit_nobody_waits() -> None:
    allowance = Allowance(None, ANSWER)
    allowance.took(1 << 40)
    assert (allowance.wait_seconds(), allowance.most(), allowance.taken) == (0.0, ANSWER, 1 << 40)


@pytest.mark.parametrize("rate", [10_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_in_every_window_at_most_the_share_a_bucket_and_one_batch_too_large(rate: int, seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    allowance = Allowance(rate, ANSWER, clock)
    bucket, batch = min(ANSWER, rate // 4), rate // 2
    taken: list[tuple[float, int]] = []
    while clock.now < 160:
        if (wait := allowance.wait_seconds()) > 0:
            clock.now += wait
        most = allowance.most()
        assert 0 < most <= bucket
        # A batch comes whole, however little was asked for; or there is little to be had.
        size = batch if chance.random() < 0.1 else chance.randrange(most + 1)
        allowance.took(size)
        taken.append((clock.now, size))
        clock.now += chance.random() * 0.05
    for start in range(0, len(taken), 7):
        total = 0
        for at, size in taken[start:]:
            total += size
            assert total <= rate * (at - taken[start][0]) + bucket + batch + 1
    assert allowance.taken == sum(size for _, size in taken)
