"""Attacks servers of its own: `python -m tests.trials.attack [--rounds N] [--seed N]`, last line ATTACK OK.

First one that serves everybody, then one with TLS and logins by strangers who never log in, then one with new
producer ids. Then a registry and an auditor with TLS and tokens, and an auditor with a million open windows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.bench_hot_path import broker
from tests.trials.attack.open_windows import attack_with_open_windows
from tests.trials.attack.producer_ids import attack_producer_ids
from tests.trials.attack.requests import versions
from tests.trials.attack.run import Attack
from tests.trials.attack.services import attack_services
from tests.trials.attack.strangers import attack_before_login

STRANGERS_ROUNDS = 3
"""Rounds of strangers; requests refused before they are read soon look the same in each round."""


def main() -> None:
    """Start brokers, attack them, say what was found; exit code 1 when it is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (address, pid):
        outcome = Attack(address, pid, options.seed).run(versions(), options.rounds)
    print(f"the dearest: {outcome.worst}")
    with tempfile.TemporaryDirectory() as folder:
        rounds = min(options.rounds, STRANGERS_ROUNDS)
        outcome += attack_before_login(Path(folder), versions(), rounds=rounds, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        outcome += attack_producer_ids(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        outcome += attack_services(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        outcome += attack_with_open_windows(Path(folder))
    counts = f"requests={outcome.requests} apis={outcome.apis} worst_cpu_ms={outcome.worst_cpu_s * 1e3:.1f}"
    if outcome.failures:
        print("\n".join(outcome.failures))
        sys.exit(f"ATTACK FAILED: {counts} failures={len(outcome.failures)}")
    print(f"ATTACK OK: {counts}")


if __name__ == "__main__":
    main()
