"""The checkpoint: what is known to be on disk, so that recovery reads only what came after.

Owns one small file per partition. Written every few seconds and at a clean close, never at every flush; an
older one is as right as a newer one, only recovery takes longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace.records.mirror_position import MirrorPosition
from millrace.storage import sealed
from millrace.storage.landmarks import Landmarks
from millrace.storage.segment import Files, SegmentFacts, sync_directory
from millrace.storage.state import LogState

FILE_NAME = "checkpoint"
VERSION = 3
_PLAIN_FIELDS = ("flushed", "high_watermark", "data_end", "start", "start_offset", "producers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The log as of one flush; every position up to `flushed` is on disk."""

    flushed: int
    high_watermark: int
    data_end: int
    """Position behind the last data batch below `flushed`."""
    start: int
    """Base of the first segment: a file above it that is missing is a loss, a file below it a leftover."""
    start_offset: int
    """Offset after the last record that retention deleted; `start` when it is unknown."""
    segments: tuple[SegmentFacts, ...]
    landmarks: Mapping[int, Landmarks]
    """Of the segments, by base, whose landmarks are in no file of their own; those below `flushed`."""
    producers: list[Any] | int
    """What `ProducerStates.save` gave: the producers, or a position."""
    mirror: MirrorPosition | None

    @classmethod
    def of(cls, state: LogState, files: Files, producers: list[Any] | int) -> Checkpoint:
        return cls(
            flushed=state.end,
            high_watermark=state.high_watermark,
            data_end=state.data_end,
            start=files.segments[0].base,
            start_offset=files.start_offset,
            segments=tuple(segment.facts for segment in files.segments if segment.base < state.end),
            landmarks={
                segment.base: landmarks.below(state.end)
                for segment in files.segments
                if segment.base < state.end and (landmarks := segment.landmarks) is not None
            },
            producers=producers,
            mirror=state.mirror,
        )

    def write(self, directory: Path) -> None:
        """Replace the directory's checkpoint; when this returns, the new one survives a power cut."""
        sealed.write(
            directory / FILE_NAME,
            {
                "version": VERSION,
                **{name: getattr(self, name) for name in _PLAIN_FIELDS},
                "segments": [astuple(facts) for facts in self.segments],
                "landmarks": [[base, marks.values.tolist()] for base, marks in self.landmarks.items()],
                "mirror": None if self.mirror is None else self.mirror.encode(self.high_watermark).decode(),
            },
        )
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Checkpoint | None:
        """The directory's checkpoint, None when there is none; sealed.Unreadable when it is damaged."""
        fields = sealed.read(directory / FILE_NAME)
        if fields is None:
            return None
        version, segments, mirror = fields["version"], fields["segments"], fields["mirror"]
        if version not in (1, 2, VERSION):
            raise MillraceError(
                f"{directory / FILE_NAME} has version {version}, this Millrace reads {VERSION}: "
                "use the release that wrote it"
            )
        if version == 1:  # which said the size of each segment's largest batch, too
            segments = [(base, max_timestamp, end) for base, max_timestamp, _, end in segments]
        # Version 1 had no landmarks, 2 had others: new ones are built when a look-up needs them.
        landmarks = fields["landmarks"] if version == VERSION else []
        return cls(
            **{name: fields[name] for name in _PLAIN_FIELDS},
            segments=tuple(SegmentFacts(*facts) for facts in segments),
            landmarks={base: Landmarks(array("q", values)) for base, values in landmarks},
            mirror=None if mirror is None else MirrorPosition.decode(mirror.encode()),
        )
