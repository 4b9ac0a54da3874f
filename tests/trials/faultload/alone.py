"""A load or a publication in one process, its tasks one after the other: `python -m` JOB SETTINGS.json.

For the power cuts: what a cut meets is the driver's work on the warehouse, and a process without Spark can
end at any of its syncs and be started again in a second. The work is the real one; only the session that
would spread its tasks over executors is a list here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from millrace.errors import MillraceError


class _Tasks:
    """Operations that a job needs of a distributed list."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks = tasks

    def map(self, function: Callable[[Any], Any]) -> _Tasks:
        return _Tasks(function(task) for task in self._tasks)

    def collect(self) -> list[Any]:
        return list(self._tasks)


class _Context:
    """Operations that a job needs of a Spark context."""

    defaultParallelism = 2

    def parallelize(self, tasks: Iterable[Any], slices: int) -> _Tasks:
        return _Tasks(tasks)

    def setLocalProperty(self, key: str, value: str) -> None:
        """There is nothing to share."""


class _Session:
    """Stands where a Spark session would."""

    sparkContext = _Context()


def main() -> None:
    """Run the job; exit code 0, or 1 with its error on standard error."""
    from millrace_warehouse import requests
    from millrace_warehouse.commands.execute import publish_one
    from tests.jobs import load_topics

    job, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    session = cast(Any, _Session())
    try:
        if job == "load":
            load_topics(session, requests.Load(**settings))
        else:
            request = requests.Publish(**settings)
            for topic in request.topics:
                publish_one(request, topic, lambda step: None)
    except MillraceError as error:
        sys.exit(f"{job}: {error}")


if __name__ == "__main__":
    main()
