"""A load or a publication in one process, its tasks one after the other: `python -m` JOB SETTINGS.json.

For the power cuts: what a cut meets is the driver's work on the warehouse, and a process without Spark can
end at any of its syncs and be started again in a second. The work is the real one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError


def _here(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(task) for task in tasks]


def main() -> None:
    """Run the job; exit code 0, or 1 with its error on standard error."""
    from millrace_warehouse import requests
    from millrace_warehouse.commands.execute import publish_one
    from millrace_warehouse.commands.loads import load_topics
    from tests.jobs import without_failures

    job, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    try:
        if job == "load":
            without_failures(load_topics(_here, requests.Load(**settings)))
        else:
            request = requests.Publish(**settings)
            for topic in request.topics:
                publish_one(request, topic, lambda step: None)
    except MillraceError as error:
        sys.exit(f"{job}: {error}")


if __name__ == "__main__":
    main()
