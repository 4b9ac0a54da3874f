"""A load's code in Spark's tasks. Workers import this module and the registry's client only."""

from __future__ import annotations

from millrace_warehouse.load.task import CutResult, CutTask, write_cut
from millrace_warehouse.without_pandas import keep_pandas_out


def write_cut_in_task(task: CutTask) -> CutResult:
    """Run `write_cut` in a process that runs no user's code, so without pandas."""
    keep_pandas_out()
    return write_cut(task)
