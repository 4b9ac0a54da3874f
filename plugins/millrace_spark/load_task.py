"""A load's code in Spark's tasks. Workers import this module, the function's and the registry's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millrace_warehouse.without_pandas import keep_pandas_out

T = TypeVar("T")
R = TypeVar("R")


def without_pandas(function: Callable[[T], R], task: T) -> R:
    """Run a load's function in a process that runs no user's code, so without pandas."""
    keep_pandas_out()
    return function(task)
