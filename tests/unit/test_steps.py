"""Progress of long commands: what a terminal, a log and a script see of it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace import steps
from millrace.cli import cli
from tests.support import WAIT_S

LOOP = """
import sys, time
from millrace import steps
steps.EVERY_S = float(sys.argv[1])
with steps.own_steps("verify", counts_only=True) as progress:
    count = steps.Count(progress, "files hashed", 40)
    for _ in range(int(sys.argv[2])):
        progress("a path")
        time.sleep(0.05)
        count.add(records=1000, size=1_000_000)
print("done")
"""


def on_a_terminal(*command: str, columns: int = 80) -> tuple[str, str]:
    """Run a command whose standard error is a terminal. Return its output and the terminal's."""
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}  # rich asks the variable first
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end, text=True, env=environment) as run:
        os.close(its_end)
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:  # the last process with the terminal has ended
            pass
        output = run.communicate(timeout=WAIT_S)[0]
    os.close(terminal)
    assert run.returncode == 0, shown
    return output, shown.decode()


def words_of(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def in_a_pipe(every_s: float, loops: int) -> Sequence[str]:
    command = [sys.executable, "-c", LOOP, str(every_s), str(loops)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "done\n"
    return done.stderr.splitlines()


@pytest.mark.parametrize(("columns", "bar"), [(80, ""), (120, "[━╸╺]+ *")])
def test_a_terminal_has_one_line_with_share_records_bytes_and_time_which_disappears(
    columns: int, bar: str
) -> None:
    output, shown = on_a_terminal(sys.executable, "-c", LOOP, "10", "45", columns=columns)
    assert output == "done\n"
    words = words_of(shown)
    figures = r"verify: (\d+) of 40 files hashed \(\d+%\), \1,000 records, \1.0 MB"
    assert re.search(rf"{figures} *{bar}0:00:\d\d", words)
    assert "a path" not in words
    assert "step:" not in words
    visible = [line.rstrip() for line in words.split("\n")]
    assert len(visible) <= 2, "the line is rewritten, not followed by another one"


def test_a_log_has_a_line_with_the_same_figures_now_and_then() -> None:
    lines = in_a_pipe(1.0, 60)
    assert 1 <= len(lines) <= 4
    line = r"step: verify: \d\d of 40 files hashed \(\d+%\), \d\d,000 records, \d\d\.0 MB, \d s"
    assert [each for each in lines if not re.fullmatch(line, each)] == []


def test_a_loop_that_ends_within_the_interval_leaves_no_line_in_a_log() -> None:
    assert in_a_pipe(10.0, 30) == []


def test_a_command_of_less_than_a_second_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with steps.own_steps("publish PageView") as progress:
        progress("committed")
    assert capfd.readouterr() == ("", "")
    _, shown = on_a_terminal(sys.executable, "-c", LOOP, "10", "4")
    assert words_of(shown).strip() == ""


def test_the_steps_of_the_first_second_are_written_when_the_command_takes_longer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SHORT_S", 0.05)
    with steps.own_steps("publish PageView") as progress:
        progress("table read")
        threading.Event().wait(0.1)
        progress("committed")
    assert capfd.readouterr().err == (
        "step: publish PageView: table read\nstep: publish PageView: committed\n"
    )


def test_with_verbose_a_terminal_gets_every_step_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_VERBOSE", "")  # and so it is as it was when the test ends
    monkeypatch.delenv("MILLRACE_VERBOSE")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any output for a terminal then
    for words, shown in (([], False), (["--verbose"], True)):
        CliRunner().invoke(cli, [*words, "topics", "--help"])
        with steps.own_steps("verify", counts_only=True) as progress:
            progress("PageView")
        assert (capfd.readouterr().err == "step: verify: PageView\n") is shown


@pytest.mark.parametrize("writes", ["a job", "a command"])
def test_lines_that_threads_write_at_the_same_time_stay_whole(
    writes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(thread: int) -> None:
        with steps.steps("load") as shown:
            line = shown if writes == "a command" else steps.to_stderr(f"load T{thread}")
            together.wait()
            for n in range(3000):
                line(f"s{n}")

    said = tmp_path / "stderr"
    together = threading.Barrier(4)
    with io.TextIOWrapper(said.open("wb", buffering=0), write_through=True) as unbuffered:
        monkeypatch.setattr(sys, "stderr", unbuffered)  # of the kind that Spark gives its driver
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
    if writes == "a command":
        expected = [f"s{n}" for n in range(3000)] * 4
    else:
        expected = [f"step: load T{thread}: s{n}" for thread in range(4) for n in range(3000)]
    assert sorted(said.read_text().split("\n")) == sorted([*expected, ""])


def test_a_long_line_of_a_library_is_told_from_a_count_in_linear_time() -> None:
    def seconds(line: str) -> float:
        begun = time.thread_time()
        assert not steps._COUNT.fullmatch(line)
        return time.thread_time() - begun

    assert seconds(" (1%)" * 20_000) < 1
    assert seconds("x (1%)" + ", 1" * 40_000) < 1
