"""A broker whose mirror makes mistakes with some topics, and lets others wait; a process.

`python -m tests.trials.faultaudit.faulty_broker CONFIG.toml FAULTS.json HELD`: FAULTS names an edit of
`batches` for each topic, and a topic that has a file in the folder HELD is not copied. Everything else is the
real broker.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.client.runs import OffsetRules, Run, runs_of
from millrace.config import BrokerConfig, load
from millrace.records.mirror_position import MirrorPosition
from millrace.wire.fetch import FetchedPartition
from millrace_broker.storage import staging
from millrace_broker.storage.staging import check_progress
from millrace_commands.broker import run
from millrace_demo.faulty_broker import replace_function
from millrace_mirror import puller
from tests.trials.faultaudit.batches import EDITS, NEEDED

HELD_S = 0.05
"""Between two looks at a topic that is held."""


def main() -> None:
    config, faults, held = sys.argv[1:]
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    _make_mistakes(json.loads(Path(faults).read_text()), Path(held))
    run(load(BrokerConfig, Path(config)))


def _make_mistakes(faults: Mapping[str, str], held: Path) -> None:
    def faulty_runs_of(
        recorded: MirrorPosition | None, before: MirrorPosition, fetched: FetchedPartition, rules: OffsetRules
    ) -> Iterator[Run]:
        topic = before.origin.topic
        if (held / topic).exists():
            time.sleep(HELD_S)
            return
        for each in runs_of(recorded, before, fetched, rules):
            yield _spoiled(each, faults[topic]) if topic in faults and len(each.batches) >= NEEDED else each

    def lenient(recorded: MirrorPosition | None, position: MirrorPosition, batches: object) -> None:
        if position.origin.topic not in faults:  # the log would refuse what is repeated or out of order
            check_progress(recorded, position, batches)  # type: ignore[arg-type]

    replace_function(puller, "runs_of", faulty_runs_of)
    replace_function(staging, "check_progress", lenient)


def _spoiled(run: Run, fault: str) -> Run:
    batches = EDITS[fault]([bytes(batch) for batch in run.batches])
    return dataclasses.replace(run, batches=tuple(memoryview(bytearray(batch)) for batch in batches))


if __name__ == "__main__":
    main()
