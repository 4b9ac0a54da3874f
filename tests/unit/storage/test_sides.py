"""The sides of a log: each method has its side, and mypy refuses a call from the wrong one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from typing_extensions import get_protocol_members

from millrace_broker.storage import sides
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.sides import BackgroundSide, CutSide, FlushSide, LogView, LoopSide

ROOT = Path(__file__).parents[3]
WRONG = """
from millrace_broker.storage.sides import BackgroundSide, CutSide, FlushSide, LogView, LoopSide

def in_the_loop(log: LoopSide) -> None:
    log.flush()
    log.apply_retention()
    log.delete()
    in_a_flush_thread(log)

def in_a_flush_thread(log: FlushSide) -> None:
    log.append([], [])

def in_a_background_thread(log: BackgroundSide) -> None:
    log.cut(0)

def while_nobody_else_uses_it(log: CutSide) -> None:
    log.read(0, 1)

def in_any_thread(log: LogView) -> None:
    log.refusal = None
"""
REFUSED = {
    5: '"LoopSide" has no attribute "flush"',
    6: '"LoopSide" has no attribute "apply_retention"',
    7: '"LoopSide" has no attribute "delete"',
    8: 'Argument 1 to "in_a_flush_thread" has incompatible type "LoopSide"; expected "FlushSide"',
    11: '"FlushSide" has no attribute "append"',
    14: '"BackgroundSide" has no attribute "cut"',
    17: '"CutSide" has no attribute "read"',
    20: 'Property "refusal" defined in "LogView" is read-only',
}


def test_every_method_of_a_log_is_on_one_side() -> None:
    methods = {name for name, value in vars(PartitionLog).items() if callable(value) and name[0] != "_"}
    sided = Counter[str]()
    for side in (LoopSide, FlushSide, BackgroundSide, CutSide):
        sided.update(get_protocol_members(side) & methods)
    assert sided.pop("flush") == 2  # of flush threads, and of a thread that has the log to itself
    assert set(sided.values()) == {1}
    assert methods - set(sided) == {"flush", "close", "delete"}
    assert not get_protocol_members(LogView) & methods


def test_mypy_refuses_a_call_from_the_wrong_side(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    # The sides alone, as following what they import takes most of a minute.
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=skip", f"--cache-dir={tmp_path}"]
    answer = subprocess.run(
        [*mypy, wrong, sides.__file__], cwd=ROOT, check=False, capture_output=True, text=True
    )
    errors = [line for line in answer.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(REFUSED), answer
    for error, (line, refusal) in zip(errors, REFUSED.items(), strict=True):
        assert f"wrong.py:{line}: error: {refusal}" in error
