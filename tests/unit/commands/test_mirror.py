"""What `millrace mirror` prints for people."""

from __future__ import annotations

import pytest

from millrace.commands.mirror import latency_text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "?"),
        (0, "0.0 s"),
        (1_234, "1.2 s"),
        (7_199_999, "7,200.0 s"),
        (7_200_000, "2.0 h"),
        (86_399_999, "24.0 h"),
        (86_400_000, "replay"),
        (363_303_669_201, "replay"),
    ],
)
def test_a_latency_is_one_only_where_messages_are_new(milliseconds: int | None, text: str) -> None:
    assert latency_text(milliseconds) == text
