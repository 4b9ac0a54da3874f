"""The levels of the page about decoding."""

from __future__ import annotations

from tests.bench.bench_decode import FROM_JSON, JSON_TO_ARROW, levels


def test_missed_levels_come_first_and_medians_of_rounds_decide() -> None:
    assert levels({JSON_TO_ARROW: [0.8, 1.0, 1.2], FROM_JSON: [0.3, 0.6, 0.8]}) == [
        "| JSON to Arrow, of from_json in the same round | ≥ 2 times | 1.67 (1.50 to 2.67) times | **no** |",
        "| JSON to Arrow, M messages/CPU-s | ≥ 0.9 | 1.00 (0.80 to 1.20) | yes |",
    ]
