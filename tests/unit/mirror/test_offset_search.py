"""Offsets of an origin and of its copy: each translated into the other, whatever lies between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from millrace.client.runs import OffsetRules, beginning, runs_of
from millrace.records import BatchHeader, Cursor, Message, build_batch, control_batch, filler_after
from millrace.wire.fetch import FetchedPartition
from millrace_broker.storage.partition_log import PartitionLog
from millrace_mirror import offset_search as translation
from millrace_mirror.offset_search import Outcome, Translated, offset_at_origin, offset_in_copy
from tests.unit.storage.logs import ORIGIN, crowded_batch, flush, open_log

BYTES, NUMBERS = OffsetRules(byte_positions=True), OffsetRules(byte_positions=False)


@dataclass
class Copying:
    """An origin's log in memory and its copy in a real one, and which offset is which."""

    log: PartitionLog
    rules: OffsetRules
    end: int = 0
    """Offset of the origin's next batch."""
    pending: list[bytes] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    """The origin's offset of every record that was to be copied."""

    def data(self, records: int, size: int = 5) -> None:
        made = build_batch([Message(1, None, b"x" * size)] * records, base_offset=self.end)
        self.records += range(self.end, self.end + records)
        self._add(made, records)

    def crowd(self) -> None:
        """More offsets than bytes: a filler follows, at the origin and in the copy."""
        made = crowded_batch(150)
        made[:8] = self.end.to_bytes(8, "big")
        self.records += range(self.end, self.end + 150)
        self._add(bytes(made), 150)

    def control(self) -> None:
        self._add(control_batch(self.end, b"left out", timestamp=1), 1)

    def _add(self, made: bytes, records: int) -> None:
        self.pending.append(made)
        self.end += len(made) if self.rules.byte_positions else records
        header = BatchHeader.parse(made)
        assert header is not None
        filler = filler_after(header, timestamp=1) if self.rules.byte_positions else None
        if filler is not None:
            self.pending.append(filler)
            self.end += len(filler)

    def copy(self) -> None:
        """Append the new batches, as one fetch answer."""
        before = self.log.mirror_position
        answer = FetchedPartition(0, 1 << 60, 1 << 60, 0, memoryview(b"".join(self.pending)))
        self.pending = []
        for run in runs_of(before, before or beginning(ORIGIN, 0), answer, self.rules):
            self.log.append_mirrored(ORIGIN, run.expected, run.batches, run.position)
        flush(self.log)

    def to_copy(self, offset: int) -> Translated:
        return offset_in_copy(*self.log.snapshot, offset)

    def to_origin(self, offset: int) -> Translated:
        return offset_at_origin(*self.log.snapshot, offset)

    def copied(self) -> list[int]:
        """The copy's offset of every record, in order."""
        found: list[int] = []
        for segment in self.log.snapshot[1].segments:
            for append in translation._appends(segment, segment.base, self.log.visible_end):
                for at, header in append.batches:
                    found += range(at, at + header.records_count)
        return found


def grown(tmp_path: Path, rules: OffsetRules, seed: int, appends: int = 25) -> Copying:
    chance = random.Random(seed)
    made = Copying(open_log(tmp_path, segment_bytes=3_000), rules)
    for _ in range(appends):
        for _ in range(chance.randrange(1, 5)):
            if chance.random() < 0.25:
                made.control()
            elif chance.random() < 0.1:
                made.crowd()
            else:
                made.data(chance.randrange(1, 6), chance.randrange(0, 90))
        made.copy()
    return made


@pytest.mark.parametrize("rules", [BYTES, NUMBERS], ids=["Millrace", "Kafka"])
@pytest.mark.parametrize(("seed", "short_walk"), [(1, 0), (2, 500), (3, 1 << 20)])
def test_every_record_has_its_offset_in_both_logs(
    tmp_path: Path, rules: OffsetRules, seed: int, short_walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "SHORT_WALK_BYTES", short_walk)
    made = grown(tmp_path, rules, seed)
    assert len(made.log.snapshot[1].segments) > 2
    copied = made.copied()
    assert len(copied) == len(made.records)
    pairs = list(zip(made.records, copied, strict=True))
    for origin, copy in pairs[:9] + random.Random(seed).sample(pairs[9:], 150) + pairs[-1:]:
        assert made.to_copy(origin) == (Outcome.TRANSLATED, copy)
        assert made.to_origin(copy) == (Outcome.TRANSLATED, origin)
    made.log.close()


@pytest.mark.parametrize("rules", [BYTES, NUMBERS], ids=["Millrace", "Kafka"])
def test_an_offset_between_records_means_the_next_one(tmp_path: Path, rules: OffsetRules) -> None:
    made = grown(tmp_path, rules, seed=9, appends=8)
    copied = made.copied()
    nexts = iter(range(len(copied)))
    index = next(nexts)
    for offset in range(0, made.records[-1] + 1, 7):
        while made.records[index] < offset:
            index = next(nexts)
        translated = made.to_copy(offset)
        assert translated.outcome is Outcome.TRANSLATED
        # Between two appends a position lies in front of the record: reading goes on at the record itself.
        assert copied[index - 1] < translated.offset <= copied[index] or index == 0
        assert first_at(copied, translated.offset) == copied[index]
    for offset in range(0, copied[-1] + 1, 11):
        back = made.to_origin(offset)
        assert back.outcome is Outcome.TRANSLATED
        assert first_at(made.records, back.offset) == made.records[copied.index(first_at(copied, offset))]
    made.log.close()


def first_at(offsets: Sequence[int], offset: int) -> int:
    return next(each for each in offsets if each >= offset)


def test_the_end_is_the_end_and_what_lies_behind_is_not_copied_yet(tmp_path: Path) -> None:
    made = Copying(open_log(tmp_path), BYTES)
    assert made.to_copy(0) == (Outcome.NOT_COPIED, -1)
    assert made.to_origin(0) == (Outcome.NOT_COPIED, -1)
    made.data(3)
    made.copy()
    end = made.records[-1] + 1
    assert made.to_copy(end) == (Outcome.TRANSLATED, made.log.high_watermark)
    assert made.to_origin(made.log.high_watermark) == (Outcome.TRANSLATED, end)
    assert made.to_copy(made.end) == (Outcome.TRANSLATED, made.log.high_watermark), "the next record's place"
    assert made.to_copy(made.end + 1).outcome is Outcome.NOT_COPIED
    assert made.to_origin(made.log.end + 1).outcome is Outcome.NOT_COPIED
    made.log.close()


def test_what_retention_took_and_what_was_never_copied_have_names(tmp_path: Path) -> None:
    made = Copying(open_log(tmp_path, segment_bytes=2_000, retention_bytes=3_000), BYTES)
    for _ in range(40):
        made.data(2, 60)
        made.copy()
    made.log.apply_retention()
    made.log.apply_retention()
    copied = made.copied()
    kept = made.records[-len(copied) :]
    assert 0 < len(kept) < len(made.records)
    assert [made.to_copy(offset).offset for offset in kept] == copied
    assert made.to_copy(made.records[0]).outcome is Outcome.NOT_RETAINED
    assert made.to_origin(0).outcome is Outcome.NOT_RETAINED
    made.log.close()


def test_offsets_of_before_the_start_and_before_a_reset_are_told_apart(tmp_path: Path) -> None:
    made = Copying(open_log(tmp_path), BYTES)
    made.data(2)
    made.copy()
    recorded = made.log.mirror_position
    assert recorded is not None
    old = made.records[0]
    moved = replace(recorded, cursor=Cursor(5_000, 5_000))
    made.log.append_mirrored(ORIGIN, recorded.cursor.next_offset, [], moved, reset=True)
    made.end, made.records = 5_000, []
    made.data(3)
    made.copy()
    assert made.to_copy(old).outcome is Outcome.BEFORE_RESET
    copied = made.copied()[2:]
    assert [made.to_copy(offset).offset for offset in made.records] == copied
    assert made.to_origin(0) == (Outcome.TRANSLATED, old), "the copy still knows what it copied then"
    recorded = made.log.mirror_position
    assert recorded is not None
    back = replace(recorded, cursor=Cursor(0, 0))
    made.log.append_mirrored(ORIGIN, recorded.cursor.next_offset, [], back, reset=True)
    made.end, made.records = 0, []
    made.data(4)
    made.copy()
    assert [made.to_copy(offset).offset for offset in made.records] == made.copied()[5:]
    made.log.close()


def test_a_mirror_that_began_later_says_so(tmp_path: Path) -> None:
    made = Copying(open_log(tmp_path), NUMBERS, end=100)
    made.data(2)
    made.log.append_mirrored(ORIGIN, None, [], beginning(ORIGIN, 100), reset=True)
    made.copy()
    assert made.to_copy(99).outcome is Outcome.BEFORE_START
    assert made.to_copy(100).outcome is Outcome.TRANSLATED
    made.log.close()
