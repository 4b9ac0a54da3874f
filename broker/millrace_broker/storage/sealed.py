"""Small files that exist completely or not at all: the checkpoint and the files beside it.

A file is written under another name, synced and renamed. A caller that needs the new name to survive a power
cut syncs the directory.

    sealed file := JSON object, newline, CRC-32 of the JSON as 8 hex digits, newline
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """The file exists, but its content is damaged or was changed."""


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, or create it, with this content; a full disk leaves the old file and nothing else."""
    side_file = path.with_name(path.name + ".tmp")
    try:
        with open(side_file, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        side_file.unlink(missing_ok=True)
        raise
    side_file.replace(path)


def write(path: Path, fields: Mapping[str, Any]) -> None:
    text = json.dumps(fields, separators=(",", ":")).encode()
    replace_file(path, b"%s\n%08x\n" % (text, zlib.crc32(text)))


def read(path: Path) -> dict[str, Any] | None:
    """Return the fields in the file, or None without a file. Raise Unreadable when it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    text, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % zlib.crc32(text):
        raise Unreadable(f"{path} fails its CRC")
    fields: dict[str, Any] = json.loads(text)
    return fields
