"""Context of a command's work: storage, catalog, progress callback and clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace_warehouse.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Progress = Callable[[str], None]
"""Callback with the name of each finished step. It reports progress; a test may end the process."""


def quiet(step: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Storage, catalog, progress and clock of a command. All topics of the command share them."""

    storage: Storage
    catalog: Catalog
    """Catalog that `publish.catalog.connect` opened."""
    progress: Progress = quiet
    clock: Callable[[], float] = time.time
