"""Runs a job under spark-submit of the installed PySpark, and returns the answer that it prints.

Handles processes, and depends on no particular job. The driver runs here, whatever the master (client mode).
It prints the answer, and it dies with the process that started it. A driver left alone would do no harm,
because loads are created exclusively, but it would hold two cores for nothing. Executors of a cluster end by
themselves when their driver is gone.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import millrace_spark
from millrace.errors import ConfigError, MillraceError
from millrace.installation import how_to_install
from millrace.process import start_child
from millrace.zookeeper.embedded import find_java

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for a job's JVM, which only schedules. They save a third of the CPU until the first task runs
(measured).
"""
DEPLOY_MODE = "spark.submit.deployMode"
LAST_LINES = 40
JOIN_S = 10
"""Seconds to wait for the last lines of an ended job: a child process may keep the pipe open."""


class ExplainedFailure(MillraceError):
    """The job itself explained its error in one sentence: Spark's other output adds nothing."""


OnLine = Callable[[str], None]
"""Callback with every line that the job writes, except its answer."""
OnPart = Callable[[Any], None]
"""Callback with every part of the answer of a resident job, which writes each as a line of JSON."""
PART = '{"part": '


def submit(
    job: str,
    settings: Mapping[str, Any],
    *,
    master: str,
    on_line: OnLine,
    on_part: OnPart | None = None,
    conf: Mapping[str, str] | None = None,
    archives: Sequence[str] = (),
) -> Any:
    """Run a job of `entry` to its end and return its result.

    Raise ExplainedFailure with the job's own line, else MillraceError. `conf` overrides every Spark setting
    that is made here. `archives` are FILE#NAME, unpacked as NAME where the tasks run. The first archive is an
    environment with Python and this package, and runs the tasks. With `on_part` the job is a resident one. It
    runs in a separate session: a terminal's Ctrl-C reaches this process alone, which must stop the job.
    """
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    with tempfile.TemporaryDirectory(prefix="millrace-job-") as name:
        folder = Path(name)
        path = folder / "settings.json"  # a year of hours to read again is too long for an argument
        _write_secret(path, json.dumps(dict(settings)))
        confs = _confs(job, master, archives) | dict(conf or {})
        # Not as --conf: every user of this machine reads command lines, and a setting may be a secret.
        properties = folder / "spark.properties"
        _write_secret(properties, "".join(map(_property, confs, confs.values())))
        options = ["--master", master, "--properties-file", str(properties), "--load-spark-defaults"]
        script = Path(millrace_spark.__path__[0], "jobs", "script.py")
        command = [str(spark_home() / "bin" / "spark-submit"), *options, str(script)]
        where = _python_folder(folder, archives[0]) if archives else None
        answers, code = _run([*command, job, str(path), str(properties)], where, last, on_line, on_part)
    return _answer(job, code, answers, last)


def _write_secret(path: Path, text: str) -> None:
    """Write a file for this user alone: URLs and settings may hold passwords."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _run(
    command: Sequence[str],
    where: Path | None,
    last: collections.deque[str],
    on_line: OnLine,
    on_part: OnPart | None,
) -> tuple[list[str], int]:
    """Run the command. Return the answers and the exit code. Pass parts of an answer to `on_part`, and all
    other lines to `on_line` and `last`.
    """
    with start_child(
        command,
        env=_environment(),
        cwd=where,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=on_part is not None,
    ) as process:

        def follow(stream: Iterable[str]) -> None:
            for line in stream:
                last.append(line.rstrip("\n"))
                on_line(last[-1])

        reader = threading.Thread(target=follow, args=(process.stderr,), daemon=True)
        reader.start()
        answers: list[str] = []
        try:
            # A Python driver's standard error appears on spark-submit's standard output.
            follow(_without_answers(process.stdout or (), answers, on_part))
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            reader.join(JOIN_S)
    return answers, code


def _without_answers(
    lines: Iterable[str], answers: list[str], on_part: OnPart | None = None
) -> Iterator[str]:
    """Yield the lines that are not a job's answer. Add the answers to `answers`, pass parts to `on_part`."""
    for line in lines:
        if on_part is not None and line.startswith(PART):
            on_part(json.loads(line)["part"])
            continue
        if line.startswith(('{"result": ', '{"error": ')):
            answers.append(line)
        else:
            yield line


def _confs(job: str, master: str, archives: Sequence[str]) -> dict[str, str]:
    """Return the settings of an application; the user's settings override them."""
    confs = {
        "spark.app.name": f"millrace {job}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.extraJavaOptions": FAST_START,
    }
    if _on_this_machine(master):
        confs |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):  # elsewhere the tasks' Python may not have it
        confs["spark.python.daemon.module"] = "millrace_spark.jobs.daemon"
    if archives:
        paths = [_split(archive) for archive in archives]
        # Absolute, because spark-submit runs in another folder then.
        confs["spark.archives"] = ",".join(f"{_absolute(path)}#{name}" for path, name in paths)
        confs["spark.pyspark.python"] = f"./{paths[0][1]}/bin/python"
    return confs


def _property(key: str, value: str) -> str:
    """Return a key and its value, escaped, as a line for a Java properties file."""
    escaped = [re.sub(r"([\\:=#! ])", r"\\\1", text).replace("\n", "\\n") for text in (key, value)]
    return "=".join(escaped) + "\n"


def _on_this_machine(master: str) -> bool:
    """Return True for a local master and for a cluster that listens on the loopback address."""
    return master.startswith("local") or urllib.parse.urlparse(master).hostname in ("127.0.0.1", "localhost")


def _split(archive: str) -> tuple[str, str]:
    """Split FILE#NAME into file and name. Raise ConfigError when it does not have that form."""
    path, _, name = archive.partition("#")
    if not path or not name or "/" in name or "," in archive:
        raise ConfigError(
            f"--archives {archive!r} is not FILE#NAME, for example environment.tar.gz#environment"
        )
    return path, name


def _absolute(path: str) -> str:
    """Return a local file's absolute path; return other URIs unchanged.

    Raise ConfigError when there is no such file.
    """
    if urllib.parse.urlparse(path).scheme:
        return path
    if not Path(path).is_file():
        raise ConfigError(f"--archives: no file {path}: pack an environment first, see docs/clusters.md")
    return str(Path(path).absolute())


def _python_folder(folder: Path, archive: str) -> Path:
    """Create a folder for spark-submit in which `python` has the same relative path as on the executors.

    Spark has one Python path for all workers. Some workers, which ask a Python data source for its
    partitions, run beside the driver, where no archive is unpacked.
    """
    python = folder / _split(archive)[1] / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MillraceError(f"Spark is not installed: {how_to_install('spark')}")
    return Path(spec.origin).parent


def _environment() -> dict[str, str]:
    java = Path(find_java())
    environment = dict(os.environ)
    # Otherwise workers take the first `python3` on the path, and spark-submit takes SPARK_HOME as it is set.
    # A `spark.pyspark.python` in the settings or in spark-defaults.conf overrides these.
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(spark_home())
    environment["PATH"] = f"{java.parent}{os.pathsep}{environment.get('PATH', '')}"
    return environment


def _answer(job: str, code: int, answers: Sequence[str], last: Sequence[str]) -> Any:
    for line in reversed(answers):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if "error" in answer:
            raise (MillraceError if answer.get("unforeseen") else ExplainedFailure)(answer["error"])
        if code == 0:
            return answer["result"]
    raise MillraceError(f"the Spark job `{job}` ended with exit code {code}: {_last_cause(last)}")


def _last_cause(lines: Sequence[str]) -> str:
    """Return the last cause in a Java stack trace, else the last line."""
    said = [line.strip() for line in lines if line.strip()]
    causes = [line for line in said if line.startswith("Caused by: ")]
    words = (causes or said or ["it wrote nothing"])[-1]
    if "UnknownHostException" in words:
        words += "; Spark must find this machine's name: add it to /etc/hosts, or set SPARK_LOCAL_HOSTNAME"
    return words
