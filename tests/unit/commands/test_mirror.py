"""What `millrace mirror` prints for people."""

from __future__ import annotations

import pytest

from millrace.commands.mirror import latency_text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(None, "?"), (0, "0.0 s"), (1_234, "1.2 s"), (7_199_999, "7,200.0 s"), (7_200_000, "2.0 h"),
     (172_800_000, "2.0 d"), (363_303_669_201, "4,204.9 d")],
)  # fmt: skip
def test_a_latency_is_short_also_where_old_events_are_replayed(milliseconds: int | None, text: str) -> None:
    assert latency_text(milliseconds) == text
