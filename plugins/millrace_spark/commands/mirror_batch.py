"""`millrace mirror-batch`: what is new in an origin's topic, into the aggregate cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from millrace_spark.commands.options import Invocation, command_of, show, submit_job, table_of
from millrace_spark.jobs.verbs import Mirror

_COLUMNS = {
    "target": "target_partition",
    "from": "start",
    "to": "end",
    "batches": "batches",
    "records": "records",
    "dropped": "dropped",
    "bytes": "bytes",
    "left": "lag",
}


@command_of(Mirror)
def mirror_batch(request: Mirror, invocation: Invocation) -> None:
    """Copy what is new in TOPICs of an origin cluster into the aggregate cluster, each batch exactly once.

    Example: millrace mirror-batch SearchQuery --origin dc1 --origin-bootstrap 127.0.0.1:9192
    --bootstrap 127.0.0.1:9392
    """
    invocation.print(submit_job("mirror", request, invocation), partial(_show, request.origin))


def _show(origin: str, answer: Mapping[str, Any]) -> None:
    table = table_of("origin partition", *_COLUMNS)
    for part in answer["partitions"]:
        numbers = (f"{part[key]:,}" for key in _COLUMNS.values())
        table.add_row(f"{origin}/{part['topic']}-{part['partition']}", *numbers)
    show(table)
