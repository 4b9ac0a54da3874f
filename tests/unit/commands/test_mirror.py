"""What `millrace mirror` takes, and prints for people."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner

from millrace.commands.mirror import _totals, latency_text, translate
from millrace.mirror.status import MirrorRow
from millrace.records import Cursor
from millrace.records.mirror_position import MirrorPosition, Origin


@pytest.mark.parametrize(
    "words", ["", "PageView --partition 0", "PageView --group g", "--offset 1 --group g"]
)
def test_a_translation_is_of_one_offset_or_of_a_whole_group(words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(translate, [str(tmp_path / "no.toml"), *words.split(), "--origin", "dc1"])
    assert result.exit_code == 2
    assert "give TOPIC, --partition and --offset, or --group" in result.output


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


def row(number: int, state: str, *, copied: int, end: int | None, latency_ms: int | None = None) -> MirrorRow:
    origin = Origin("dc1", "PageView", UUID(int=1), number)
    position = MirrorPosition(origin, 0, Cursor(copied), 0, 0, 0)
    return MirrorRow(
        topic="PageView",
        partition=number,
        origin=origin,
        leader=1,
        position=position,
        origin_high_watermark=end,
        state=state,
        latency_ms=latency_ms,
    )


def test_an_origins_lag_is_told_only_if_that_of_each_partition_is_known() -> None:
    rows = [
        row(0, "running", copied=10, end=30, latency_ms=200),
        row(1, "running", copied=5, end=1_005, latency_ms=1_500),
        row(2, "waiting", copied=7, end=7),
    ]
    assert _totals("dc1", rows) == ("dc1", 3, "1,020", "1.5 s", "2 running, 1 waiting")
    silent = row(3, "waiting", copied=1, end=None)
    assert _totals("dc1", [*rows, silent]) == ("dc1", 4, "?", "1.5 s", "2 running, 2 waiting")
