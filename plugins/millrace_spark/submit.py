"""Runs a job under spark-submit of the installed PySpark, and gives back what it prints.

Knows processes, not jobs. The job dies with whoever started it: a driver left alone does no harm (loads are
published exclusively), but it would hold two cores for nothing.
"""

from __future__ import annotations

import collections
import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millrace_spark
from millrace.errors import MillraceError
from millrace.zookeeper import find_java

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for jobs whose JVM only schedules: a third less CPU until the first task runs (measured)."""
LAST_LINES = 40
JOIN_S = 10
"""For the last lines of a job that has ended; something it left running may hold the pipe open."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

OnLine = Callable[[str], None]
"""Called with every line the job writes to standard error."""


def submit(job: str, settings: Mapping[str, Any], *, master: str, on_line: OnLine, fast_start: bool) -> Any:
    """Run `jobs/<job>.py` to its end; its result, or MillraceError with its own line."""
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    with _in_a_file(settings) as path:
        output, code = _run(_command(job, path, master, fast_start), last, on_line)
    return _answer(job, code, output, last)


@contextmanager
def _in_a_file(settings: Mapping[str, Any]) -> Iterator[str]:
    """Path of a file with the settings as JSON: a year of hours is too long for an argument."""
    with tempfile.NamedTemporaryFile("w", prefix="millrace-job-", suffix=".json") as file:
        json.dump(dict(settings), file)
        file.flush()
        yield file.name


def _run(command: Sequence[str], last: collections.deque[str], on_line: OnLine) -> tuple[str, int]:
    """Standard output and exit code; standard error goes to `on_line`, its last lines to `last`."""
    with subprocess.Popen(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=_end_with_the_parent,  # one prctl call, no lock is taken
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_follow, args=(process.stderr, last, on_line), daemon=True)
        reader.start()
        try:
            output = process.stdout.read()
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            reader.join(JOIN_S)
    return output, code


def _command(job: str, settings_path: str, master: str, fast_start: bool) -> list[str]:
    home = _spark_home()
    options = ["--master", master, "--name", f"millrace {job}"]
    confs = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        confs |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if fast_start:
        options += ["--driver-java-options", FAST_START]
    for key, value in confs.items():
        options += ["--conf", f"{key}={value}"]
    script = Path(millrace_spark.__path__[0], "jobs", f"{job}.py")
    return [str(home / "bin" / "spark-submit"), *options, str(script), settings_path]


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MillraceError("Spark is not installed: pip install 'millrace[spark]'")
    return Path(spec.origin).parent


def _environment() -> dict[str, str]:
    java = Path(find_java())
    environment = dict(os.environ)
    # Workers otherwise take whatever `python3` is first on the path, spark-submit whatever SPARK_HOME says.
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(_spark_home())
    environment["PATH"] = f"{java.parent}{os.pathsep}{environment.get('PATH', '')}"
    return environment


def _end_with_the_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _follow(stream: Any, last: collections.deque[str], on_line: OnLine) -> None:
    for line in stream:
        last.append(line.rstrip("\n"))
        on_line(last[-1])


def _answer(job: str, code: int, output: str, last: collections.deque[str]) -> Any:
    for line in reversed(output.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and "error" in answer:
            raise MillraceError(answer["error"])
        if isinstance(answer, dict) and "result" in answer and code == 0:
            return answer["result"]
    words = next((line for line in reversed(last) if line.strip()), "it left no word")
    raise MillraceError(f"the Spark job `{job}` ended with exit code {code}: {words.strip()}")
