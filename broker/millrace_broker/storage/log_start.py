"""The start of a log after records were deleted: a small file beside the checkpoint.

The checkpoint states the start, too. The later start of the two counts, so that deleted records do not come
back when one of the two is lost, damaged or an old copy.
"""

from __future__ import annotations

import logging
from pathlib import Path

from millrace_broker.storage import sealed
from millrace_broker.storage.segment import sync_directory

logger = logging.getLogger("millrace.storage.log_start")

FILE_NAME = "start"


def write_start(directory: Path, offset: int) -> None:
    """Write the offset of the first record that is kept. On return, it survives a power cut."""
    sealed.write(directory / FILE_NAME, {"start_offset": offset})
    sync_directory(directory)


def read_start(directory: Path) -> int:
    """Return the offset in the file; 0 if the file is missing or damaged."""
    try:
        fields = sealed.read(directory / FILE_NAME)
    except sealed.Unreadable as error:
        logger.error("%s; the log starts where its checkpoint says", error)
        return 0
    return 0 if fields is None else int(fields["start_offset"])


def remove_start(directory: Path) -> None:
    """Delete the file; the caller syncs the directory."""
    (directory / FILE_NAME).unlink(missing_ok=True)
