"""Runs a job under spark-submit of the installed PySpark, or without Spark, and returns its printed answer.

Handles processes, and depends on no particular job. The driver runs here, whatever the master (client mode).
It prints the answer, and it dies with the process that started it. A driver left alone would do no harm,
because loads are created exclusively, but it would hold two cores for nothing. Executors of a cluster end by
themselves when their driver is gone.
"""

from __future__ import annotations

import collections
import fcntl
import importlib.util
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

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
TIMEOUT = "spark.millrace.executors.timeout"
"""Millrace's own Spark setting, also for spark-defaults.conf. Its value is a time in Spark's form."""
DEFAULT_TIMEOUT = "10m"
"""Spark's default time limit on Kubernetes for the pod of an executor."""
SAY_AFTER_S = 10.0
"""Seconds of waiting for the cluster after which a job says so."""
PROPERTIES = "spark.properties"
DRIVER = "driver.py"
"""Name of the script that `send` sends."""
_SETTINGS = "settings.json"
_FOLDER = "millrace-job-"
_LOCK = "lock"
LEFT_S = 60.0
"""Age at which the lock of a folder shows whether its command runs."""
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
    with _folder_with(_SETTINGS, json.dumps(dict(settings))) as path:
        script = Path(millrace_spark.__path__[0], "jobs", "script.py")
        command = _spark_submit(path.parent, master, _confs(job, master, archives) | dict(conf or {}))
        where = _python_folder(path.parent, archives[0]) if archives else None
        command += [str(script), job, str(path), str(path.parent / PROPERTIES)]
        return _answer(job, _run(command, _environment(), on_line, on_part, where))


def send(job: str, script: str, master: str, conf: Mapping[str, str], archives: Sequence[str]) -> None:
    """Send a driver, the text of a Python script, to a cluster. Raise MillraceError if it is not accepted."""
    with _folder_with(DRIVER, script) as path:
        confs = _confs(job, master, archives)
        # The driver's Python is that of the tasks.
        confs = {"spark.pyspark.python": confs.pop("spark.pyspark.driver.python"), **confs, **conf}
        command = [*_spark_submit(path.parent, master, confs), str(path)]
        ended = _run(command, _environment(), lambda line: None)
    if ended.code != 0:
        raise MillraceError(f"{master} does not accept the driver of `{job}`: {_last_cause(ended.last)}")


def _spark_submit(folder: Path, master: str, confs: Mapping[str, str]) -> list[str]:
    """Return the command, without the script and its arguments."""
    if master == "yarn" and "spark.kerberos.keytab" not in confs:
        from millrace_warehouse.storage.gss import log_in  # other masters need neither of them
        from millrace_warehouse.storage.hadoop_settings import read_settings

        if read_settings().get("hadoop.security.authentication") == "kerberos":
            log_in()  # without a ticket Spark's JVM would silently ask YARN again and again, for minutes
    # Not as --conf: every user of this machine reads command lines, and a setting may be a secret.
    _write_secret(folder / PROPERTIES, "".join(map(_property, confs, confs.values())))
    options = ["--master", master, "--properties-file", str(folder / PROPERTIES), "--load-spark-defaults"]
    return [str(spark_home() / "bin" / "spark-submit"), *options]


def run_here(job: str, settings: Mapping[str, Any], *, processes: int, on_line: OnLine) -> Any:
    """Run a job of `here` to its end, its tasks in that many processes. Return its result.

    Raise the errors of `submit`.
    """
    with _folder_with(_SETTINGS, json.dumps(dict(settings))) as path:
        command = [sys.executable, "-P", "-m", "millrace_spark.jobs.here", job, str(processes), str(path)]
        # Files of tasks that are killed are deleted with the folder, by a later command if need be.
        return _answer(job, _run(command, os.environ | {"TMPDIR": str(path.parent)}, on_line))


@contextmanager
def _folder_with(name: str, text: str) -> Iterator[Path]:
    """Yield the path of a file in a folder of its own. A year of hours is too long for an argument."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        _write_secret(Path(folder, _LOCK), "")
        with _locked(Path(folder)):
            path = Path(folder, name)
            _write_secret(path, text)
            yield path


def _sweep() -> None:
    """Delete the folders that killed commands have left, with the files of their tasks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with suppress(OSError):  # deleted by now, or without a lock yet
            found = folder.lstat()
            # Through a link another user could name a folder of this user's.
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if is_own and time.time() - found.st_mtime > LEFT_S:
                with _locked(folder) as is_locked:
                    if is_locked:
                        shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder. Yield False if another process holds it, or the file system has no locks."""
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _write_secret(path: Path, text: str) -> None:
    """Write a file for this user alone: URLs and settings may hold passwords."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


class _Ended(NamedTuple):
    code: int
    answers: Sequence[str]
    last: Sequence[str]
    """Last lines of its output that are no answer."""


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_line: OnLine,
    on_part: OnPart | None = None,
    where: Path | None = None,
) -> _Ended:
    """Run the command to its end. Pass parts of an answer to `on_part`, and all other lines to `on_line`."""
    last = collections.deque[str](maxlen=LAST_LINES)
    with start_child(
        command,
        env=environment,
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
                with suppress(OSError):  # standard error may be closed, but a full pipe would stop the job
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
    return _Ended(code, answers, last)


def _without_answers(lines: Iterable[str], answers: list[str], on_part: OnPart | None) -> Iterator[str]:
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


def _answer(job: str, ended: _Ended) -> Any:
    for line in reversed(ended.answers):
        with suppress(ValueError):
            answer = json.loads(line)
            if "error" in answer or ended.code == 0:
                return result_in(answer)
    raise MillraceError(f"the job `{job}` ended with exit code {ended.code}: {_last_cause(ended.last)}")


def result_in(answer: Mapping[str, Any]) -> Any:
    """Return the result in a driver's answer, or raise its error: ExplainedFailure, if it was foreseen."""
    if "error" in answer:
        raise (MillraceError if answer.get("unforeseen") else ExplainedFailure)(answer["error"])
    return answer["result"]


def _last_cause(lines: Sequence[str]) -> str:
    """Return the last cause in a Java stack trace, else the last line."""
    said = [line.strip() for line in lines if line.strip()]
    causes = [line for line in said if line.startswith("Caused by: ")]
    words = (causes or said or ["it wrote nothing"])[-1]
    if "UnknownHostException" in words:
        words += "; Spark must find this machine's name: add it to /etc/hosts, or set SPARK_LOCAL_HOSTNAME"
    return words
