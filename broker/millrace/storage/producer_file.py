"""Where a partition's producers are written down: in the checkpoint while they are few, else in a file.

    <partition>/producers := sealed JSON {version, end, producers}    as of a flush up to position `end`

The checkpoint is written every few seconds, and thousands of producers are 750 KB of it and 30 ms. The file
is written when a segment was rolled since, when 64 MiB were, and at the close; what came behind it is read
from the headers again by recovery. `Checkpoint.producers` then says from where on: behind that position
stands the first batch of a producer that the file does not tell of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.storage import sealed
from millrace.storage.producer_state import ProducerStates
from millrace.storage.segment import sync_directory

FILE_NAME = "producers"
VERSION = 1
FEW_PRODUCERS = 100
READ_AGAIN_BYTES = 64 << 20
"""Of headers alone: 0.3 s where each batch is one message of 200 bytes."""


class ProducerFile:
    """Brings the states of a partition to the disk; for one thread at a time."""

    def __init__(self, directory: Path, states: ProducerStates) -> None:
        self._directory = directory
        self._states = states
        self._end = -1
        """Up to where the file tells of everything; -1 when nothing relies on the file."""
        self._read_from = -1
        """The same, or further: no producer's batch lies between."""

    def save(self, flushed: int, rolled_at: int, *, closing: bool) -> list[Any] | int:
        """What the checkpoint has to say of the producers; writes the file if that is due.

        `rolled_at` is where the last segment begins.
        """
        if len(self._states) <= FEW_PRODUCERS:
            self._end = -1
            return self._states.to_json(flushed)
        behind = flushed - self._end
        if self._end >= 0 and self._states.newest_end <= self._end:
            self._read_from = flushed
        elif closing or self._end < rolled_at or behind >= READ_AGAIN_BYTES:
            self._write(flushed)
        return self._read_from

    def _write(self, flushed: int) -> None:
        fields = {"version": VERSION, "end": flushed, "producers": self._states.to_json(flushed)}
        sealed.write(self._directory / FILE_NAME, fields)
        sync_directory(self._directory)  # before a checkpoint relies on it
        self._end = self._read_from = flushed

    def load(self, said: list[Any] | int, flushed: int) -> int | None:
        """Take over the states as the checkpoint says; from where on headers are to be read again.

        None when the file is not what the checkpoint relies on: then the whole log is to be read.
        """
        if isinstance(said, list):
            self._states.load_json(said, flushed)
            return flushed
        try:
            fields = sealed.read(self._directory / FILE_NAME)
        except sealed.Unreadable:
            return None
        if fields is None or fields["version"] != VERSION:
            return None
        self._states.load_json(fields["producers"], flushed)
        if fields["end"] > flushed:  # no checkpoint relies on it yet, and what it tells of may be cut
            return flushed
        self._end, self._read_from = fields["end"], max(said, fields["end"])
        return self._read_from
