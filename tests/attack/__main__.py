"""Attacks a broker of its own: `python -m tests.attack [--rounds N] [--seed N]`, last line ATTACK OK."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack.requests import versions
from tests.attack.run import Attack
from tests.bench.bench_hot_path import broker


def main() -> None:
    """Start a broker, attack it, say what was found; exit code 1 when it is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (address, pid):
        outcome = Attack(address, pid, options.seed).run(versions(), options.rounds)
    print(f"the dearest: {outcome.worst}")
    counts = f"requests={outcome.requests} apis={outcome.apis} worst_cpu_ms={outcome.worst_cpu_s * 1e3:.1f}"
    if outcome.failures:
        print("\n".join(outcome.failures))
        sys.exit(f"ATTACK FAILED: {counts} failures={len(outcome.failures)}")
    print(f"ATTACK OK: {counts}")


if __name__ == "__main__":
    main()
