"""The checkpoint: what is known to be on disk, so that recovery reads only what came after.

Owns one small file per partition. Written every few seconds and at a clean close, never at every flush; an
older one is as right as a newer one, only recovery takes longer. Written to a side file, synced, renamed:
it is there whole or not at all.

    checkpoint := JSON object, newline, CRC-32 of the JSON as 8 hex digits, newline
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace.records.mirror_position import MirrorPosition
from millrace.storage.producer_state import ProducerStates
from millrace.storage.segment import Files, SegmentFacts, sync_directory
from millrace.storage.state import LogState

FILE_NAME = "checkpoint"
VERSION = 1


class CheckpointUnreadable(Exception):
    """The file is there but is not a whole checkpoint."""


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
    producers: tuple[Any, ...]
    mirror: MirrorPosition | None

    @classmethod
    def of(cls, state: LogState, files: Files, producers: ProducerStates) -> Checkpoint:
        """The checkpoint of a flushed state."""
        return cls(
            flushed=state.end,
            high_watermark=state.high_watermark,
            data_end=state.data_end,
            start=files.segments[0].base,
            start_offset=files.start_offset,
            segments=tuple(segment.facts for segment in files.segments if segment.base < state.end),
            producers=tuple(producers.to_json(state.end)),
            mirror=state.mirror,
        )

    def write(self, directory: Path) -> None:
        """Replace the directory's checkpoint; when this returns, the new one survives a power cut."""
        fields = {
            "version": VERSION,
            "flushed": self.flushed,
            "high_watermark": self.high_watermark,
            "data_end": self.data_end,
            "start": self.start,
            "start_offset": self.start_offset,
            "segments": [astuple(facts) for facts in self.segments],
            "producers": self.producers,
            "mirror": None if self.mirror is None else self.mirror.encode(self.high_watermark).decode(),
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        side_file = directory / (FILE_NAME + ".tmp")
        with open(side_file, "wb") as file:
            file.write(b"%s\n%08x\n" % (text, zlib.crc32(text)))
            file.flush()
            os.fsync(file.fileno())
        side_file.replace(directory / FILE_NAME)
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Checkpoint | None:
        """The directory's checkpoint, None when there is none; CheckpointUnreadable when it is damaged."""
        try:
            data = (directory / FILE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        text, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % zlib.crc32(text):
            raise CheckpointUnreadable(f"{directory / FILE_NAME} fails its CRC")
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise MillraceError(
                f"{directory / FILE_NAME} has version {fields['version']}, this Millrace reads {VERSION}: "
                "use the release that wrote it"
            )
        mirror = fields["mirror"]
        return cls(
            flushed=fields["flushed"],
            high_watermark=fields["high_watermark"],
            data_end=fields["data_end"],
            start=fields["start"],
            start_offset=fields["start_offset"],
            segments=tuple(SegmentFacts(*facts) for facts in fields["segments"]),
            producers=tuple(fields["producers"]),
            mirror=None if mirror is None else MirrorPosition.decode(mirror.encode()),
        )
