"""The checkpoint: a note of the part of a log that is on the disk, so that recovery reads only later bytes.

It is one small file per partition, written every few seconds and at a clean close, but not at every flush. An
older checkpoint is as correct as a newer one; only recovery takes longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace.records.mirror_position import MirrorPosition
from millrace_broker.storage import sealed
from millrace_broker.storage.epochs import EpochMap
from millrace_broker.storage.landmarks import Landmarks
from millrace_broker.storage.segment import Files, SegmentFacts, sync_directory
from millrace_broker.storage.state import LogState

FILE_NAME = "checkpoint"
VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The durable description of a log, as of one flush."""

    state: LogState
    """Every position up to the state's end is on disk; its `messages` is 0."""
    start: int
    """Base of the first segment. A missing file above this position is a loss, and a file below it is a
    leftover."""
    start_offset: int
    """Offset before which records were given up; `start` when unknown."""
    segments: tuple[SegmentFacts, ...]
    landmarks: Mapping[int, Landmarks]
    """Landmarks below the state's end that are in no file of their own, by segment base."""
    producers: list[Any] | int
    """Result of `ProducerStates.save`: the producers, or a position."""
    epochs: tuple[tuple[int, int], ...]
    """Pairs of a leader's epoch and the position of its first batch, both rising."""
    committed: LogState | None = None
    """The committed part of a log with replicas, as far as known; None: everything that is flushed."""

    @property
    def flushed(self) -> int:
        return self.state.end

    @classmethod
    def of(
        cls,
        state: LogState,
        files: Files,
        producers: list[Any] | int,
        epochs: EpochMap,
        committed: LogState | None = None,
    ) -> Checkpoint:
        flushed, base = [one for one in files.segments if one.base < state.end], files.segments[0].base
        is_empty = files.segments[-1].end == base
        return cls(
            state=state._replace(messages=0),
            start=base,
            start_offset=files.start_offset,
            segments=tuple(segment.facts for segment in flushed),
            landmarks={
                segment.base: landmarks.below(state.end)
                for segment in flushed
                if (landmarks := segment.landmarks) is not None
            },
            producers=producers,
            # An empty log keeps the last leader's epoch: retention deleted its batches.
            epochs=tuple(start for start in epochs.starts if start[1] < state.end or is_empty),
            committed=None if committed is None else committed._replace(messages=0),
        )

    def write(self, directory: Path) -> None:
        """Replace the directory's checkpoint. On return, the new checkpoint survives a power cut."""
        state = self.state
        fields = {
            "version": VERSION,
            "flushed": state.end,
            "high_watermark": state.high_watermark,
            "data_end": state.data_end,
            "start": self.start,
            "start_offset": self.start_offset,
            "segments": [astuple(facts) for facts in self.segments],
            "landmarks": [[base, marks.values.tolist()] for base, marks in self.landmarks.items()],
            "producers": self.producers,
            "epochs": self.epochs,
            "committed": None
            if self.committed is None
            else [*self.committed[:3], _mirror_in(self.committed)],
            "mirror": _mirror_in(state),
        }
        sealed.write(directory / FILE_NAME, fields)
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Checkpoint | None:
        """Return the directory's checkpoint, or None if there is none.

        Raise sealed.Unreadable when it is damaged.
        """
        fields = sealed.read(directory / FILE_NAME)
        if fields is None:
            return None
        version, segments, mirror = fields["version"], fields["segments"], fields["mirror"]
        if version not in (1, 2, VERSION):
            raise MillraceError(
                f"{directory / FILE_NAME} has version {version}, this Millrace reads {VERSION}: "
                "use the release that wrote it"
            )
        if version == 1:  # it also held the size of each segment's largest batch
            segments = [(base, max_timestamp, end) for base, max_timestamp, _, end in segments]
        # Version 1 had no landmarks, version 2 had others: they are rebuilt when a look-up needs them.
        landmarks = fields["landmarks"] if version == VERSION else []
        committed = fields.get("committed")
        # A release without epochs stamped -1, which counts as 0.
        epochs = fields.get("epochs", [(0, fields["start"])] if fields["flushed"] > 0 else ())
        return cls(
            state=_state(fields["flushed"], fields["high_watermark"], fields["data_end"], mirror),
            start=fields["start"],
            start_offset=fields["start_offset"],
            segments=tuple(SegmentFacts(*facts) for facts in segments),
            landmarks={base: Landmarks(array("q", values)) for base, values in landmarks},
            producers=fields["producers"],
            epochs=tuple((epoch, start) for epoch, start in epochs),
            committed=None if committed is None else _state(*committed),
        )


def _mirror_in(state: LogState) -> str | None:
    return None if state.mirror is None else state.mirror.encode(state.high_watermark).decode()


def _state(end: int, high_watermark: int, data_end: int, mirror: str | None) -> LogState:
    position = None if mirror is None else MirrorPosition.decode(mirror.encode())
    return LogState(end, high_watermark, data_end, 0, position)
