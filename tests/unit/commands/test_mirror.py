"""Options of `millrace mirror`, and its output for people."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from click.testing import CliRunner

from millrace.client import examine
from millrace.records import Cursor, Message, build_batch
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.fetch import FetchedPartition
from millrace.wire.mirror_append import MirrorAppend, MirrorAppended, MirrorMode
from millrace_mirror.commands import latency_text, reset_mirror, totals_of, translate
from millrace_mirror.status import MirrorRow, MirrorStatus


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
    assert totals_of("dc1", rows) == ("dc1", 3, "1,020", "1.5 s", "2 running, 1 waiting")
    silent = row(3, "waiting", copied=1, end=None)
    assert totals_of("dc1", [*rows, silent]) == ("dc1", 4, "?", "1.5 s", "2 running, 2 waiting")


class OnceCompacted:
    """An Apache Kafka as origin and what its mirror is asked: nothing is copied of a log that begins at 5."""

    bootstrap, cluster_id = "origin:1", "kafka"

    def __init__(self, first_batch: int) -> None:
        self.records = build_batch([Message(1, None, b"v")], base_offset=first_batch)
        self.reset: MirrorAppend | None = None

    def origin(self, _: str) -> OnceCompacted:
        return self

    def former(self, _: Origin) -> None:
        return None

    def ask(self, _: str, request: MirrorAppend) -> MirrorAppended:
        if request.mode is MirrorMode.RESET:
            self.reset = request
        return MirrorAppended()

    def bounds(self, *_: object) -> tuple[int, int]:
        return 5, 20

    def fetch(self, *_: object, **__: object) -> dict[int, FetchedPartition]:
        return {0: FetchedPartition(0, 20, 20, 5, memoryview(self.records))}


@pytest.mark.parametrize(("first_batch", "reset"), [(5, False), (12, True)])
def test_a_partition_that_stopped_before_anything_was_copied_can_be_reset(
    first_batch: int, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "topic_setting", lambda *_: "delete")
    mirrors, origin = OnceCompacted(first_batch), Origin("dc1", "PageView", UUID(int=1), 0)
    assert reset_mirror(cast(MirrorStatus, mirrors), origin, None, True) is reset
    if reset:
        assert mirrors.reset is not None
        assert (mirrors.reset.expected, mirrors.reset.cursor) == (None, Cursor(12, 12))
