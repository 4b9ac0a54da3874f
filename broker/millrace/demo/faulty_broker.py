"""A broker whose mirror withholds or repeats one batch: what the proof must catch.

`python -m millrace.demo.faulty_broker drop|duplicate CONFIG.toml` runs the ordinary broker with one function
of its mirror replaced, as a mistake in that function would. A repeated batch is also refused by the log, so
that check is taken away too. Nothing of this is in the broker's own code.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millrace.commands.broker import run
from millrace.config import BrokerConfig, load
from millrace.mirror import puller
from millrace.mirror.runs import OffsetRules, Run, next_run
from millrace.storage import partition_log
from millrace.storage.position import MirrorPosition
from millrace.wire.fetch import FetchedPartition

log = logging.getLogger(__name__)

TOPIC = "PageView"
Next = Callable[[MirrorPosition | None, MirrorPosition, FetchedPartition, OffsetRules], Run | None]


def once(fault: Callable[[Run], Run]) -> Next:
    """`next_run`, with the fault in the first run that has batches of the topic."""
    done = False

    def faulty_next_run(
        recorded: MirrorPosition | None, before: MirrorPosition, fetched: FetchedPartition, rules: OffsetRules
    ) -> Run | None:
        nonlocal done
        found = next_run(recorded, before, fetched, rules)
        if found is None or done or not found.batches or before.origin.topic != TOPIC:
            return found
        done = True
        log.warning("fault: a batch of %s is withheld or repeated", before.origin)
        return fault(found)

    return faulty_next_run


def drop(run: Run) -> Run:
    """The run without its first batch; its position still says that it is there."""
    return replace(run, batches=run.batches[1:])


def duplicate(run: Run) -> Run:
    """The run with its first batch twice."""
    return replace(run, batches=run.batches[:1] + run.batches)


def main() -> None:
    """Run the broker of the file; only broker 1 is faulty, so that one batch is lost and not several."""
    fault, file = sys.argv[1:]
    config = load(BrokerConfig, Path(file))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    if config.broker_id == 1:
        # By name, because this is not what either module offers to its users.
        setattr(puller, "next_run", once({"drop": drop, "duplicate": duplicate}[fault]))  # noqa: B010
        setattr(partition_log, "check_progress", lambda *_: None)  # noqa: B010
    run(config)


if __name__ == "__main__":
    main()
