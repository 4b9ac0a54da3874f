"""Run histories, then each mutant: `python -m tests.trials.sim [--histories N] [--first SEED]`."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.trials.mutation import Mutation
from tests.trials.sim.mutants import install, read_mutants

PER_TASK = 250
MUTANT_HISTORIES = 4_000
"""A mutant must be caught within so many histories."""
SHOWN = 5


def main() -> int:
    """Run what is asked for; 0 when no invariant broke and every mutant was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.trials.sim", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first history")
    parser.add_argument("--mutant", type=int, help="run this mutant only, in this process")
    options = parser.parse_args()
    if options.mutant is not None:
        return _run_mutant(read_mutants()[options.mutant])
    counts, violations = _run_histories(options.first, options.first + options.histories)
    _explain(violations)
    survived = _run_mutants()
    print(" ".join(f"{name}={count}" for name, count in sorted(counts.items())))
    mutants = len(read_mutants())
    verdict = "FAILED" if violations or survived else "OK"
    print(
        f"SIM {verdict}: histories={options.histories} violations={len(violations)}"
        f" mutants={mutants} caught={mutants - survived}"
    )
    return int(verdict != "OK")


def _run_histories(first: int, last: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    from tests.trials.sim.runs import run

    counts: Counter[str] = Counter()
    violations: list[tuple[int, str]] = []
    starts = range(first, last, PER_TASK)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        ends = (min(start + PER_TASK, last) for start in starts)
        for tally in pool.starmap(run, zip(starts, ends, strict=True), 1):
            counts.update(tally.counts)
            violations += tally.violations
    return counts, violations


def _explain(violations: list[tuple[int, str]]) -> None:
    """Print the seeds, and a few of the histories with as few faults as break them."""
    from tests.trials.sim.history import History
    from tests.trials.sim.runs import shrink, violation_of

    for seed, what in itertools.islice(violations, SHOWN):
        shrunk = shrink(History.draw(seed))
        print(f"seed {seed}: {what}\nshrunk to {shrunk}\n  {violation_of(shrunk)}")
    if violations:
        print("seeds:", *(seed for seed, _ in violations))


def _run_mutants() -> int:
    """Run each mutant in a process of its own, two at a time; how many survived."""
    mutants = read_mutants()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        outcomes = list(threads.map(_outcome_of, range(len(mutants))))
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        if outcome is None:
            print(f"SURVIVED  {mutant.what}")
        else:
            print(f"caught by seed {outcome[0]:<4} {mutant.what}: {outcome[1].partition(': ')[0]}")
    return outcomes.count(None)


def _outcome_of(index: int) -> tuple[int, str] | None:
    command = [sys.executable, "-m", "tests.trials.sim", "--mutant", str(index)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    outcome = json.loads(done.stdout)
    return None if outcome is None else (outcome[0], outcome[1])


def _run_mutant(mutant: Mutation) -> int:
    install(mutant)
    from tests.trials.sim.runs import first_violation

    print(json.dumps(first_violation(MUTANT_HISTORIES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
