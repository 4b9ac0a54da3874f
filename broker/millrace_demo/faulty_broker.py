"""A broker whose mirror withholds or repeats one batch, which the proof must catch.

`python -m millrace_demo.faulty_broker drop|duplicate CONFIG.toml` runs the ordinary broker with one function
of its mirror replaced, as if that function had a bug. The log, too, would refuse a repeated batch, so its
check is removed. The broker's own code has no trace of this.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from millrace.client.runs import OffsetRules, Run, runs_of
from millrace.config import BrokerConfig, load
from millrace.records import BatchHeader
from millrace.records.mirror_position import MirrorPosition
from millrace.wire.fetch import FetchedPartition
from millrace_broker.storage import staging
from millrace_commands.broker import run
from millrace_mirror import puller

logger = logging.getLogger(__name__)

TOPIC = "PageView"
MIN_RECORDS = 2
"""Fewest records of the batch: a batch of one message would be a poor example."""
Runs = Callable[[MirrorPosition | None, MirrorPosition, FetchedPartition, OffsetRules], Iterator[Run]]


def once(fault: Callable[[Run, int], Run]) -> Runs:
    """Return `runs_of` with the injected fault at the topic's first batch of several records."""
    done = False

    def faulty_runs_of(
        recorded: MirrorPosition | None, before: MirrorPosition, fetched: FetchedPartition, rules: OffsetRules
    ) -> Iterator[Run]:
        nonlocal done
        for mirror_run in runs_of(recorded, before, fetched, rules):
            counts = [BatchHeader.of(batch).records_count for batch in mirror_run.batches]
            large = [index for index, count in enumerate(counts) if count >= MIN_RECORDS]
            if done or not large or before.origin.topic != TOPIC:
                yield mirror_run
                continue
            done = True
            logger.warning("fault: %d records of %s", counts[large[0]], before.origin)
            yield fault(mirror_run, large[0])

    return faulty_runs_of


def drop(run: Run, index: int) -> Run:
    """Return the run without one batch; its position still includes the batch."""
    return replace(run, batches=run.batches[:index] + run.batches[index + 1 :])


def duplicate(run: Run, index: int) -> Run:
    """Return the run with one batch twice; the second is a copy, because the log stamps batches in memory."""
    copy = memoryview(bytearray(run.batches[index]))
    return replace(run, batches=(*run.batches[: index + 1], copy, *run.batches[index + 1 :]))


def replace_function(module: ModuleType, name: str, by: Callable[..., object]) -> None:
    """Replace a function of a module. Raise AttributeError when the module has no function of that name."""
    getattr(module, name)
    setattr(module, name, by)


def main() -> None:
    """Run the broker of the file; only broker 1 is faulty, so that only one batch is lost."""
    fault, file = sys.argv[1:]
    config = load(BrokerConfig, Path(file))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    if config.broker_id == 1:
        replace_function(puller, "runs_of", once({"drop": drop, "duplicate": duplicate}[fault]))
        replace_function(staging, "check_progress", lambda *_: None)
    run(config)


if __name__ == "__main__":
    main()
