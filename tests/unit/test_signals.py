"""A process is told to end at the worst moment: while its main thread holds a lock, and more than once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import WAIT_S, run_python

SERVER = """
import os, signal, threading
from millrace.signals import stop_on_signals

lock, stopping, calls = threading.Lock(), threading.Event(), []

def stop():
    with lock:
        calls.append(threading.current_thread().name)
        stopping.set()

stop_on_signals(stop)
with lock:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
stopping.wait(60)
os.kill(os.getpid(), signal.SIGTERM)
print(calls)
"""
WAITING = """
import threading
from millrace.signals import stop_on_signals

stop = threading.Event()
stop_on_signals(stop.set)
print("ready", flush=True)
while not stop.is_set():
    stop.wait(0.0001)
"""
STUCK = """
import threading, millrace.signals
millrace.signals.STOP_LIMIT_S = 0.1
millrace.signals.stop_on_signals(lambda: None, limited=True)
print("ready", flush=True)
threading.Event().wait()
"""
FAILED = """
import threading, millrace.signals
millrace.signals.STOP_LIMIT_S = 0.1
millrace.signals.end_soon(1)
print("ready", flush=True)
threading.Event().wait()
"""
STEPS = """
import os, signal
from millrace.signals import interruptible

try:
    with interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        print("went on")
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print("cleaned up")
"""
DROPPED = """
import os, signal, time
import millrace.signals
millrace.signals.REPEAT_S = 0.05

class Careless:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

try:
    with millrace.signals.interruptible():
        Careless()
        try:
            while True:
                pass
        finally:
            try:
                raise ValueError
            except ValueError:
                time.sleep(0.5)
            print("cleaned up inside")
finally:
    print("cleaned up")
"""


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], stdout=-1, text=True, timeout=60, check=True).stdout


def start(script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_stop_may_take_a_lock_that_the_main_thread_holds_and_is_called_once() -> None:
    assert run(SERVER) == "['signals']\n"


@pytest.mark.parametrize("attempt", range(5))
def test_a_main_thread_that_waits_for_the_event_that_stops_it_ends(attempt: int) -> None:
    with start(WAITING) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
        # At its very end Python gives the signals their own meaning again.
        assert process.wait(0) in (0, -signal.SIGTERM)


def test_a_process_that_may_be_killed_ends_though_it_waits_for_an_answer() -> None:
    with start(STUCK) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    with start(FAILED) as process:
        assert process.wait(WAIT_S) == 1


def test_a_program_is_interrupted_once_and_cleans_up_in_peace() -> None:
    assert run(STEPS) == "cleaned up\n"


def test_an_interrupt_that_python_drops_is_raised_again_but_not_while_the_program_cleans_up() -> None:
    program = run_python("-c", DROPPED, timeout_s=60)
    assert "Exception ignored" in program.stderr
    assert program.stdout == "cleaned up inside\ncleaned up\n"


def test_no_code_of_ours_handles_the_end_of_a_process_in_another_way() -> None:
    """Four have a reason: Airflow takes the signals for itself, a runner only notes one, what becomes another
    program gives them back their first meaning, and so does a load without Spark, which Ctrl-C ends."""
    sources = Path(__file__).parents[2]
    found = {
        path.name
        for folder in ("broker", "plugins", "dags")
        for path in (sources / folder).rglob("*.py")
        if "signal.signal(" in path.read_text()
    }
    assert found == {"signals.py", "run_once.py", "job_runner.py", "process.py", "here.py"}
