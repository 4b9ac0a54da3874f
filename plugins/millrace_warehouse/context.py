"""The place of a verb's work: storage and catalog, the callback for its steps, and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace_warehouse.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Progress = Callable[[str], None]
"""Called with the name of each step when it is done: a progress line, or a test that ends the process."""


def quiet(step: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Storage, catalog, progress and clock of a verb; the same for each of its topics."""

    storage: Storage
    catalog: Catalog
    """Catalog, as `publish.catalog.connect` opens it."""
    progress: Progress = quiet
    clock: Callable[[], float] = time.time
