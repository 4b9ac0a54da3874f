"""What `millrace mirror` takes, and prints for people."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.commands.mirror import latency_text, translate


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
