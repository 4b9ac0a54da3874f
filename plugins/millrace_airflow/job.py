"""A millrace command as a separate process, which outlives the process that started it.

Owns one folder per job and its contents, and does not depend on the command. The next try takes over a job
whose watcher died, and starts a lost job again, because every command may be repeated.

    command.json   the command
    lock           locked while anything of the job runs; shows "alive" without trusting a pid
    watch          locked by the process that watches the job, while that process lives
    deferred       exists once a trigger watches the job instead
    stopped        exists once the job is being stopped
    group          process group of the job, and the machine where this number is valid
    log            the command's standard error, line by line
    result         its standard output
    secrets        client file and password, deleted when the command has ended
    status.json    {"exit_code": n}, written whole when the command has ended
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace.escaping import escaped

KILL_AFTER_S = 2.0
"""Seconds that a stopped job has to end by itself. Airflow kills the stopping task after five seconds."""
CLEARED_S = 35.0
"""Seconds after a deferred task was cleared in which its trigger may stop the job. Airflow gives it 30 s."""
RESULT_S = 3600.0
"""Seconds for which the result of a job without a watcher serves as the result of the next try."""
WRONG_OPTION = 2
"""Exit code of a command whose options are wrong."""
SECRETS = "secrets"
KEEP_S = 7 * 24 * 3600.0
"""Seconds for which a job's folder stays if no task comes back for it."""


class JobFailed(MillraceError):
    """The command ended with an error or disappeared. The text repeats the command's own last line."""


class JobRefused(JobFailed):
    """The command refused its own options (exit code 2). Another try would be refused, too."""


class Job:
    """One job, identified by its folder, which any process may watch, stop and read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._watched: int | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        parent: Path,
        name: str,
        environment: Mapping[str, str] | None = None,
        client_files: Mapping[str, str] | None = None,
    ) -> Job:
        """Start `command` detached from this process, in a new folder under `parent`.

        `environment` is added to this process's own, without Airflow's variables, which hold its secrets and
        connections. It is not written to any file. `client_files` exist, for this user alone, while the
        command runs; the command finds the first of them in MILLRACE_CLIENT.
        """
        job = cls(parent / f"{name}-{uuid.uuid4().hex[:12]}")
        job.directory.mkdir(parents=True)
        job._watch()
        _sweep(parent)
        try:
            job._begin(command, dict(environment or {}), client_files or {})
        except BaseException:  # a timeout of Airflow's, too, may end this between any two steps
            if job._path("lock").exists():
                job._await_group()
                job.kill()
            job.remove()
            raise
        return job

    @classmethod
    def take_over(cls, command: Sequence[str], parent: Path, name: str) -> Job | None:
        """Return the job of that name and command whose watcher died, if it runs or has succeeded; else None.

        A deferred job that still runs is taken over, too, once its trigger has had time to stop it. A
        deferred task has no next try, so this try means that the task was cleared or that the trigger is
        gone. A job that is being stopped has as much time to end, and is not taken over while it runs. A job
        that has succeeded is taken over for a while, because its task could not finish with its result.
        """
        for directory in parent.glob(f"{name}-*"):
            job = cls(directory)
            with suppress(OSError, ValueError, JobFailed):  # the folder may be deleted at this moment
                same = json.loads(job._path("command.json").read_text()) == list(command)
                if same and job._watch() and job._serves():
                    return job
            job.stop_watching()
        return None

    def _serves(self) -> bool:
        """Return True if the next try can go on with this job, which nobody else watches."""
        if self._path("deferred").exists() or self._path("stopped").exists():
            self._await_end(CLEARED_S)
        alive = self.alive()
        code = self._exit_code()  # after `alive`: a job that ends meanwhile does not look dead
        if not alive:  # the process that should have deleted them may have been killed
            shutil.rmtree(self._path(SECRETS), ignore_errors=True)
        if code is not None:
            return code == 0 and self._is_fresh()
        return alive and not self._path("stopped").exists()

    def leave_to_trigger(self) -> None:
        """Mark the job as watched by a trigger: no worker watches it from now on."""
        self._path("deferred").touch()
        self.stop_watching()

    def stop_watching(self) -> None:
        """Stop watching the job, as if this process had ended."""
        if self._watched is not None:
            os.close(self._watched)
        self._watched = None

    def ended(self) -> bool:
        """Return True once nothing of the job runs, with or without an exit code."""
        return self._exit_code() is not None or not self.alive()

    def alive(self) -> bool:
        """Return True while anything of the job runs.

        Raise JobFailed when this machine cannot see its folder.
        """
        try:
            with self._path("lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            raise JobFailed(
                f"no job folder {self.directory} on this machine: workers and triggerers need one job_dir"
            ) from None
        return False

    def follow(self, write: Callable[[str], None], poll_s: float = 0.1) -> None:
        """Wait until the job has ended, passing each line of its log to `write`."""
        with self._path("log").open("rb") as log:
            pending = b""
            while not self.ended():
                *lines, pending = (pending + log.read()).split(b"\n")
                for line in lines:
                    write(_shown(line))
                time.sleep(poll_s)
            for line in (pending + log.read()).splitlines():
                write(_shown(line))

    def log_lines(self) -> Iterator[str]:
        with self._path("log").open(errors="replace") as log:
            for line in log:
                yield escaped(line.rstrip("\n"))

    def result(self) -> Any:
        """Return the ended command's output, parsed as JSON.

        Raise JobFailed with its last line when it failed.
        """
        if not self.ended():
            raise JobFailed(f"{self._command()} has not ended")
        if (code := self._exit_code()) is None:
            raise JobFailed(f"{self._command()} was killed before it ended: {self._last_line()}")
        if code != 0:
            failure = JobRefused if code == WRONG_OPTION else JobFailed
            raise failure(f"{self._command()} failed with exit code {code}: {self._last_line()}")
        text = self._path("result").read_text()
        try:
            return json.loads(text)
        except ValueError:
            raise JobFailed(f"{self._command()} printed no JSON: {text.strip()[:200]!r}") from None

    def printed(self) -> Any:
        """Return the command's output as JSON, even of a failed command, or None without JSON."""
        try:
            return json.loads(self._path("result").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, timeout_s: float = KILL_AFTER_S) -> None:
        """End the whole process group: SIGTERM, then SIGKILL for the rest. Return when it is gone.

        A command that must end a driver on a cluster leaves the group, and the job stays alive until then.
        Raise JobFailed on another machine than the job's: there the group's number means another group.
        """
        if self.alive():
            group, host = self._path("group").read_text().split()
            if host != socket.gethostname():
                raise JobFailed(f"{self._command()} runs on {host} and can be stopped only there")
            self._path("stopped").touch()
            # Until nothing is left of the group, including child processes of the command.
            with suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGKILL):
                    os.killpg(int(group), number)
                    deadline = time.monotonic() + timeout_s
                    while time.monotonic() < deadline:
                        os.killpg(int(group), 0)
                        time.sleep(0.05)
        shutil.rmtree(self._path(SECRETS), ignore_errors=True)

    def remove(self) -> None:
        self.stop_watching()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _begin(
        self, command: Sequence[str], environment: dict[str, str], client_files: Mapping[str, str]
    ) -> None:
        if client_files:
            secrets = self._path(SECRETS)
            secrets.mkdir(mode=0o700)
            for file, text in client_files.items():
                (secrets / file).touch(mode=0o600)
                (secrets / file).write_text(text)
            environment["MILLRACE_CLIENT"] = str((secrets / next(iter(client_files))).absolute())
        self._path("command.json").write_text(json.dumps(list(command)))
        with self._path("lock").open("wb") as lock:
            # Locked here and inherited: the job never exists without its lock, so it never looks dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            runner = [sys.executable, "-m", "millrace_airflow.job_runner", str(self.directory)]
            with self._path("log").open("wb") as log:
                started = subprocess.run(
                    [*runner, str(lock.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**_without_airflow(os.environ), **environment},
                    pass_fds=[lock.fileno()],
                    check=False,
                )
        if started.returncode:
            raise JobFailed(f"cannot start {_printable(command)}: {self._last_line()}")

    def _await_end(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _await_group(self) -> None:
        """Wait until the job's process, if there is one, has written its group, without which it cannot be
        stopped.
        """
        deadline = time.monotonic() + KILL_AFTER_S
        while self.alive() and not self._path("group").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _is_fresh(self) -> bool:
        """Return True when the job ended recently: an older result may be out of date."""
        return time.time() - self._path("status.json").stat().st_mtime < RESULT_S

    def _watch(self) -> bool:
        """Return True once this process watches the job; False while another process does."""
        self._watched = os.open(self._path("watch"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._watched, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.stop_watching()
            return False
        return True

    def _path(self, name: str) -> Path:
        return self.directory / name

    def _exit_code(self) -> int | None:
        try:
            return int(json.loads(self._path("status.json").read_text())["exit_code"])
        except FileNotFoundError:
            return None

    def _command(self) -> str:
        return _printable(json.loads(self._path("command.json").read_text()))

    def _last_line(self) -> str:
        last = ""
        for line in self.log_lines():
            last = line.strip() or last
            if line.startswith("millrace: "):
                # The command's own summary of its error; Spark may write more after it.
                return line.removeprefix("millrace: ").strip()
        return last or "it wrote nothing; see the log of its machine"


def _shown(line: bytes) -> str:
    return escaped(line.decode(errors="replace").rstrip("\r"))


def _without_airflow(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith("AIRFLOW_")}


def _sweep(parent: Path) -> None:
    """Delete the folders of jobs that ended long ago. Another starter may do the same at this moment."""
    for directory in parent.iterdir():
        with suppress(OSError, JobFailed):  # the folder may be deleted by now, or be no job's
            if time.time() - directory.stat().st_mtime > KEEP_S and not Job(directory).alive():
                shutil.rmtree(directory, ignore_errors=True)


def _printable(command: Sequence[str]) -> str:
    # People know `python -m millrace.cli load PageView ...` as `millrace load PageView`.
    if list(command[1:3]) == ["-m", "millrace.cli"]:
        return f"`millrace {' '.join(command[3:5])}`"
    return f"`{Path(command[0]).name}`"
