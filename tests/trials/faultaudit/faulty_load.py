"""One load by the code of Spark's job, without Spark, and with a mistake in its reading; a process.

`python -m tests.trials.faultaudit.faulty_load LOAD.json FAULT`: the tasks run here, one after the other, and
what they read goes through an edit of `batches`, unless FAULT is empty or MISCOUNT. Prints a line of what was
done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from millrace.config import from_mapping
from millrace.errors import MillraceError
from millrace.records import BatchHeader
from millrace_audit.reports.counts import SequenceCounts
from millrace_demo.faulty_broker import replace_function
from millrace_warehouse.commands.loads import TopicFailure, load_topics
from millrace_warehouse.load import task
from millrace_warehouse.log.reading import FetchedBatches, read_cut
from millrace_warehouse.requests import Load
from millrace_warehouse.sequences import count_sequences
from tests.trials.faultaudit.batches import BATCH, EDITS, NEEDED

MISCOUNT = "miscount"
"""Make the manifest state 10 sequences fewer than the files have rows."""


def main() -> None:
    file, fault = sys.argv[1:]
    if fault == MISCOUNT:
        replace_function(task, "count_sequences", _miscounted)
    elif fault:
        replace_function(task, "read_cut", _spoiling(fault))
    request = from_mapping(Load, json.loads(Path(file).read_text()), "the load")
    (result,) = load_topics(_here, request)
    if isinstance(result, TopicFailure):
        raise MillraceError(result.error)
    print(result.message)


def _here(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(each) for each in tasks]


def _miscounted(rows: Any, counts: SequenceCounts) -> SequenceCounts:
    return count_sequences(rows.slice(BATCH), counts)


def _spoiling(fault: str) -> Callable[..., Iterator[FetchedBatches]]:
    def faulty_read_cut(*arguments: Any) -> Iterator[FetchedBatches]:
        for some in read_cut(*arguments):
            if len(some.batches) < NEEDED:
                yield some
                continue
            batches = EDITS[fault]([bytes(batch) for _, batch in some.batches])
            yield FetchedBatches([(BatchHeader.of(b), memoryview(b)) for b in batches], some.log_start)

    return faulty_read_cut


if __name__ == "__main__":
    try:
        main()
    except MillraceError as error:
        sys.exit(f"millrace: {error}")
