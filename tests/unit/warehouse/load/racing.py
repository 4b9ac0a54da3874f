"""Drivers that race for the loads and editions of one topic, and are killed at any moment; for a test.

`python -m tests.unit.warehouse.load.racing FOLDER SEED KILLS`: DRIVERS processes load the same log, a few
bytes at a time, and read a load again now and then; one of them is killed (SIGKILL) after the other and
begins anew. The log is the same in all of them: made before they are forked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import Topic, load_numbers
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.storage import open_storage
from millrace_warehouse.without_pandas import keep_pandas_out
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, load_run

DRIVERS = 3
EVENTS = 600


def racing_log() -> MemoryLog:
    """The same log in every process that makes it."""
    log = MemoryLog(3)
    log.topic_id = uuid.UUID(int=1)
    for partition in range(3):
        log.append_events(partition, [START + n * 60_003 for n in range(EVENTS // 3)], batch=5)
    return log


def drive(log: MemoryLog, warehouse: Path, seed: int) -> None:
    """Load part after part until nothing is left; read one of the loads again now and then."""
    chance, storage = random.Random(seed), open_storage(str(warehouse))
    turn = 0
    while True:
        turn += 1
        run = load_run(log, warehouse, f"{seed} {turn}", bounds=Bounds(max_bytes=1_500))
        try:
            result = load_topic(run, TOPIC)
            if chance.random() < 0.3 and (loads := load_numbers(Topic(storage, TOPIC))):
                again = load_run(log, warehouse, f"again {seed} {turn}").context
                reload_topic(ReloadRun(context=again, reason="a test"), TOPIC, [chance.choice(loads)])
        except MillraceError as error:
            if "other runs" not in str(error):
                raise
            continue
        if not result.published and not result.left_bytes:
            return


def start(log: MemoryLog, warehouse: Path, seed: int) -> int:
    """The pid of a driver."""
    if (pid := os.fork()) == 0:
        try:
            drive(log, warehouse, seed)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def race(warehouse: Path, seed: int, kills: int) -> int:
    """Return the number of drivers killed before they were done; AssertionError when one has failed."""
    log, chance, killed = racing_log(), random.Random(seed), 0
    seeds = iter(range(1_000_000))
    drivers = {start(log, warehouse, next(seeds)) for _ in range(DRIVERS)}
    try:
        while drivers:
            if killed < kills:
                time.sleep(chance.uniform(0.02, 0.3))
                victim = chance.choice(sorted(drivers))
                os.kill(victim, signal.SIGKILL)
            pid, status = os.wait()
            drivers.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, -signal.SIGKILL), f"a driver ended with {code}"
            if code != 0:
                killed += 1
                drivers.add(start(log, warehouse, next(seeds)))
    finally:
        for pid in drivers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return killed


if __name__ == "__main__":
    keep_pandas_out()  # or every process that is forked imports it
    print(race(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
