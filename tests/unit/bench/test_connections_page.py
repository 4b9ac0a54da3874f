"""The levels of requests on many connections, from the figures of both brokers."""

from __future__ import annotations

from tests.bench.connections import LEVELS, TIMES, Figures, levels


def test_a_level_compares_the_rounds_of_its_cell() -> None:
    fast, slow = Figures(rate=100, broker_us=12, client_us=5), Figures(rate=50, broker_us=10, client_us=5)
    rounds = [(fast, slow), (fast, fast), (fast, slow)]
    found = list(levels({cell: rounds for _, _, cells in LEVELS for cell in cells}))
    assert {level.measured for level in found if level.what.endswith(f": {TIMES}")} == {2.0}
    assert {level.measured for level in found if level.unit == "µs"} == {12}
    assert {level.measured for level in found if level.what.endswith("broker's CPU")} == {1.2}
    met = {(level.what.rpartition(": ")[2], level.wanted): level.met for level in found}
    assert met == {
        ("requests/s", 1.8): True,
        ("requests/s", 5.0): False,
        ("requests/s", 2.5): False,
        ("requests/s", 1.2): True,
        ("broker's CPU of a request", 9.0): False,
        ("broker's CPU of a request", 11.0): False,
        ("broker's CPU of a request", 13.0): True,
        ("broker's CPU of a request", 22.0): True,
        ("broker's CPU of a request", 35.0): True,
        ("broker's CPU", 1.0): False,
    }
