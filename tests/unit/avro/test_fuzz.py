"""Damaged messages neither crash the decoders nor pass for others.

MILLRACE_FUZZ sets how many there are in the long form.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.support import REPOSITORY, run_python

MESSAGES = int(os.environ.get("MILLRACE_FUZZ", "1000000"))


def fuzzed(messages: int, seed: int, timeout_s: float) -> dict[str, int]:
    """Fuzz that many messages in a separate process. Its end by a signal is an error that names the seed."""
    command = ["-m", "tests.unit.avro.fuzzing", "--messages", str(messages), "--seed", str(seed)]
    paths = os.pathsep.join(str(REPOSITORY / part) for part in ("", "broker", "plugins"))
    done = run_python(*command, timeout_s=timeout_s, env={"PYTHONPATH": paths})
    assert done.returncode == 0, f"seed {seed} ended with {done.returncode}: {done.stderr[-2000:]}"
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_damaged_messages_are_rejected_or_are_what_they_say() -> None:
    counts = fuzzed(6000, 7, 120)
    assert counts["messages"] >= 6000
    assert counts["accepted"] > counts["messages"] // 100, "too coarse: hardly any are accepted at all"


@pytest.mark.long
def test_a_million_damaged_messages() -> None:
    counts = fuzzed(MESSAGES, 1, 3600)
    assert counts["messages"] >= MESSAGES
    print(counts)
