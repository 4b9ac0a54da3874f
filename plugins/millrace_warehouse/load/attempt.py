"""One attempt to make a load or an edition: a separate folder, and the exclusive create that commits it.

Files get their final names at once, in a folder that no manifest names until the attempt has won. A task that
was given up on, or that wakes up days later, writes into a folder that no reader opens. So no file needs to
be moved, swept or waited for. A lost attempt leaves at most a folder, which `expire` deletes once another
attempt has taken its number.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

from millrace.errors import MillraceError
from millrace_warehouse.context import Progress
from millrace_warehouse.history.layout import Topic, manifest_path, read_edition, rows_folder
from millrace_warehouse.history.manifest import LoadManifest, encode, sealed

CREATE_TRIES = 3
"""Most tries to create a manifest while the storage does not answer. The storage retries each try itself."""

Write = Callable[[str], LoadManifest]
"""Function that writes the rows of an attempt, given its name, and returns the manifest, not sealed yet."""


def new_attempt(edition: int) -> str:
    """Return a unique name for an attempt. It begins with the edition, which `layout.attempted` parses."""
    return f"{edition:04d}-{uuid.uuid4().hex[:16]}"


def make(topic: Topic, load: int, edition: int, write: Write, progress: Progress) -> LoadManifest | None:
    """Write a load's edition and create its manifest. Return None when another attempt has taken its number.

    Raise MillraceError when it cannot be written, or when the storage does not tell whether the manifest
    exists.
    """
    attempt = new_attempt(edition)
    try:
        manifest = sealed(write(attempt))
    except BaseException:
        discard(topic, load, attempt)
        raise
    progress("prepared")
    if not create(topic, manifest):
        discard(topic, load, attempt)
        return None
    progress("committed")
    return manifest


def create(topic: Topic, manifest: LoadManifest) -> bool:
    """Create the manifest, even if answers are lost. Return True if this attempt has the number.

    Raise MillraceError when the storage does not tell. From this call on, the attempt's folder may be deleted
    only if another attempt certainly has the number: a create without an answer may still happen.
    """
    path, content = manifest_path(manifest), encode(manifest)
    for turn in range(1, CREATE_TRIES + 1):
        try:
            if topic.storage.create(path, content):
                return True
            there = read_edition(topic, manifest.load, manifest.edition)
            return there.attempt == manifest.attempt
        except MillraceError as error:
            if turn == CREATE_TRIES:
                raise MillraceError(
                    f"{error}; whether {path} was created is not known: run again to find out"
                ) from None
    raise AssertionError  # the loop returns or raises


def discard(topic: Topic, load: int, attempt: str) -> None:
    """Delete the files of a lost attempt. Ignore the storage's errors: they may have caused the loss."""
    with suppress(MillraceError):
        topic.storage.delete(rows_folder(topic.name, load, attempt))
