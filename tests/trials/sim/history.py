"""A history: its seed, how many replicas, and a list of faults, which can be made shorter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

SHAPES = ((3, 2), (3, 2), (2, 1), (3, 1), (4, 2), (5, 3))
"""(replicas, min.insync.replicas)."""
LENGTH_S = 15.0
KINDS = {
    "kill": 4,  # a process: what it wrote is in the page cache
    "power": 3,  # of one machine
    "power of all": 1,
    "stop": 2,  # cleanly, after it resigned
    "pause": 3,  # SIGSTOP
    "lose disk": 2,
    "restore disk": 2,  # from an older copy, which gets another id
    "restore disk unnoticed": 2,
    "restore ZooKeeper": 2,  # from an older copy
    "refuse flushes": 1,
    "slow disk": 3,
    "cut off": 2,  # from all other brokers
    "cut link": 3,
    "reset": 2,  # connections of one broker
    "no ZooKeeper": 3,  # for one broker
    "ZooKeeper away": 1,
    "minimum": 1,  # is raised by one for a while
    "move": 2,  # takes a broker out of the replicas, and back as the first of them
}
"""Faults, and how often each is drawn beside the others."""
LOSING = ("lose disk", "restore disk", "restore disk unnoticed", "restore ZooKeeper", "refuse flushes")
"""After one of these something committed may be on one replica less."""


class Fault(NamedTuple):
    """Fault of `broker`, and its duration."""

    at: float
    kind: str
    broker: int
    other: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.kind}: broker {self.broker} ({self.other}) for {self.lasts_s:.2f} s"


@dataclass(frozen=True, slots=True)
class History:
    """All that a run depends on."""

    seed: int
    replicas: int
    minimum: int
    faults: tuple[Fault, ...]

    @classmethod
    def draw(cls, seed: int) -> History:
        """The history of that seed; at most `minimum - 1` disks are lost or restored, as is promised."""
        rng = Random(seed)
        replicas, minimum = rng.choice(SHAPES)
        disks = minimum - 1
        faults = []
        for kind in rng.choices(list(KINDS), list(KINDS.values()), k=rng.randint(4, 24)):
            if kind in LOSING:
                # A restored ZooKeeper names no eligible replica: only the new leader may have everything.
                disks -= minimum - 1 if kind == "restore ZooKeeper" else 1
                if disks < 0 or minimum == 1:
                    continue
            broker, other = rng.sample(range(1, replicas + 1), 2)
            faults.append(
                Fault(
                    rng.random() * LENGTH_S,
                    kind,
                    broker,
                    other,
                    rng.choice([0.1, 0.7, 2.5]) * rng.random() * 2,
                )
            )
        return cls(seed, replicas, minimum, tuple(sorted(faults)))

    def without(self, first: int, count: int) -> History:
        """The same history without some of its faults."""
        return replace(self, faults=self.faults[:first] + self.faults[first + count :])

    def __str__(self) -> str:
        faults = "\n".join(f"  {fault}" for fault in self.faults)
        return f"seed {self.seed}, {self.replicas} replicas, minimum {self.minimum}:\n{faults}"
