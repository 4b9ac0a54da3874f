"""A job is a process of its own: it outlives its starter, says how it ended, and can be stopped whole."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace_airflow.job import Job, JobFailed
from tests.support import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def gone(pid: int) -> bool:
    """True when no process of that id runs; a zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def pid_in(path: Path) -> int:
    return int(wait_until(f"a pid in {path}", lambda: path.is_file() and path.read_text()) or 0)


def test_a_job_returns_the_json_its_command_printed(tmp_path: Path) -> None:
    job = Job.start(python("import json; print(json.dumps({'rows': 3}))"), tmp_path, "load")
    job.follow(lambda line: None)
    assert job.result() == {"rows": 3}
    job.remove()
    assert list(tmp_path.iterdir()) == []


def test_every_line_of_the_log_is_passed_on_once_and_whole(tmp_path: Path) -> None:
    code = """
import sys, time
for piece in ("one\\ntw", "o\\n", "thr\\u00e9e\\n", "last, without an end"):
    sys.stderr.buffer.write(piece.encode()); sys.stderr.flush(); time.sleep(0.05)
"""
    lines: list[str] = []
    job = Job.start(python(code), tmp_path, "load")
    job.follow(lines.append, poll_s=0.01)
    assert lines == ["one", "two", "thr\u00e9e", "last, without an end"] == list(job.log_lines())


def test_a_jobs_client_files_are_its_users_alone_and_go_with_its_end(tmp_path: Path) -> None:
    code = (
        "import json, os, pathlib; client = pathlib.Path(os.environ['MILLRACE_CLIENT']);"
        "modes = [oct(path.stat().st_mode & 0o777) for path in (client, client.parent)];"
        "print(json.dumps([client.read_text(), *modes]))"
    )
    files = {"client.toml": "user = 'loads'", "client.password": "canary-77a1"}
    job = Job.start(python(code), tmp_path, "load", client_files=files)
    job.follow(lambda line: None)
    assert job.result() == ["user = 'loads'", "0o600", "0o700"]
    left = [path for path in job.directory.rglob("*") if path.is_file()]
    assert left
    assert not [path for path in left if "canary-77a1" in path.read_text()]


def test_a_job_does_not_inherit_airflows_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", "canary-77a1")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "canary-77a1")
    monkeypatch.setenv("OF_THE_WORKER", "kept")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    job = Job.start(python(code), tmp_path, "load", {"MILLRACE_REGISTRY": "http://given"})
    job.follow(lambda line: None)
    inherited = job.result()
    assert not [name for name in inherited if name.startswith("AIRFLOW")]
    assert (inherited["OF_THE_WORKER"], inherited["MILLRACE_REGISTRY"]) == ("kept", "http://given")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_job_leaves_no_client_files(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if number == signal.SIGKILL else ""
    code = (
        f"import os, signal, time, pathlib; {ignore}"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    job = Job.start(python(code), tmp_path / "jobs", "load", client_files={"client.toml": "canary-77a1"})
    pid_in(pid_file)
    job.kill(timeout_s=2)
    assert not (job.directory / "secrets").exists()


@pytest.mark.parametrize("broken", ["disk", "runner"])
def test_a_job_that_cannot_be_started_leaves_no_client_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    write_text = Path.write_text

    def full(self: Path, text: str) -> int:
        if self.name == "command.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write_text(self, text)

    if broken == "disk":
        monkeypatch.setattr(Path, "write_text", full)
    else:
        monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises((OSError, JobFailed), match=r"No space left|cannot start"):
        Job.start(["true"], tmp_path, "load", client_files={"client.password": "canary-77a1"})
    assert list(tmp_path.iterdir()) == []


def test_the_next_try_deletes_the_client_files_of_a_job_lost_with_its_machine(tmp_path: Path) -> None:
    jobs, pid_file = tmp_path / "jobs", tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    job = Job.start(python(code), jobs, "load", client_files={"client.toml": "canary-77a1"})
    command = pid_in(pid_file)
    os.killpg(int((job.directory / "group").read_text().split()[0]), signal.SIGKILL)
    wait_until("the command is gone", lambda: gone(command) and not job.alive())
    job.stop_watching()
    assert Job.take_over(python(code), jobs, "load") is None
    assert not (job.directory / "secrets").exists()


def test_a_failed_job_repeats_the_commands_own_line_not_what_followed_it(tmp_path: Path) -> None:
    code = "import sys; sys.exit('millrace: no topic Views: create it\\nShutdownHook called')"
    job = Job.start(python(code), tmp_path, "load")
    job.follow(lambda line: None)
    with pytest.raises(JobFailed, match=r"failed with exit code 1: no topic Views: create it$"):
        job.result()


def test_output_that_is_not_json_is_a_failure(tmp_path: Path) -> None:
    job = Job.start(python("print('done')"), tmp_path, "load")
    job.follow(lambda line: None)
    with pytest.raises(JobFailed, match=r"printed no JSON: 'done'"):
        job.result()


def test_a_command_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    job = Job.start(["/no/such/program"], tmp_path, "load")
    job.follow(lambda line: None)
    with pytest.raises(JobFailed, match=r"`program` was killed before it ended: .*No such file"):
        job.result()


def test_killing_a_job_ends_its_whole_process_group(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    job = Job.start(python(code), tmp_path, "load")
    child = pid_in(tmp_path / "child")
    assert not job.ended()
    job.kill()
    assert job.ended()
    wait_until("the grandchild is gone", lambda: gone(child))
    with pytest.raises(JobFailed, match="exit code -15"):
        job.result()
    job.kill()  # a second time does nothing


def test_a_job_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
    job = Job.start(python(code), tmp_path, "load")
    pid = pid_in(tmp_path / "pid")
    job.kill(timeout_s=0.2)
    wait_until("it is gone", lambda: gone(pid))
    with pytest.raises(JobFailed, match="was killed before it ended"):
        job.result()


def test_what_a_job_has_started_is_stopped_though_the_job_itself_ends_at_once(tmp_path: Path) -> None:
    child = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    job = Job.start(python(code), tmp_path, "load")
    pid = pid_in(tmp_path / "child")
    job.kill(timeout_s=0.5)
    wait_until("it is gone", lambda: gone(pid))


def test_a_job_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    starter = f"""
import sys
import time
from pathlib import Path
from millrace_airflow.job import Job
code = "import pathlib, time; go = pathlib.Path({str(tmp_path / "go")!r})\\n" \\
       "while not go.exists(): time.sleep(0.01)\\n" \\
       "print('[1]')"
print(Job.start([sys.executable, "-c", code], Path({str(tmp_path)!r}), "load").directory)
"""
    done = subprocess.run(python(starter), capture_output=True, text=True, check=True, timeout=30)
    job = Job(Path(done.stdout.strip()))
    assert job.alive()
    assert not job.ended()
    (tmp_path / "go").touch()
    job.follow(lambda line: None)
    assert job.result() == [1]


def test_a_job_whose_runner_was_killed_still_counts_as_alive_while_its_command_runs(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    job = Job.start(python(code), tmp_path, "load")
    command = pid_in(tmp_path / "pid")
    runner = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(runner, signal.SIGKILL)
    wait_until("the runner is gone", lambda: gone(runner))
    assert job.alive()
    assert not job.ended()
    job.kill()
    wait_until("the command is gone", lambda: gone(command))
    with pytest.raises(JobFailed, match="was killed before it ended"):
        job.result()


def test_a_folder_that_this_machine_cannot_see_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="workers and triggerers need one job_dir"):
        Job(tmp_path / "elsewhere").ended()


@pytest.mark.slow
def test_a_job_that_is_stopped_the_moment_it_starts_does_not_miss_the_signal(tmp_path: Path) -> None:
    for _ in range(10):
        job = Job.start(python("import time; time.sleep(60)"), tmp_path, "load")
        began = time.monotonic()
        job.kill(timeout_s=300)
        assert time.monotonic() - began < 60, "a signal that is missed is waited for in vain"


def test_folders_nobody_came_back_for_are_deleted_a_week_later_unless_their_job_still_runs(
    tmp_path: Path,
) -> None:
    forgotten = Job.start(python("print(1)"), tmp_path, "forgotten")
    recent = Job.start(python("print(1)"), tmp_path, "recent")
    running = Job.start(python("import time; time.sleep(60)"), tmp_path, "running")
    for job in (forgotten, recent):
        job.follow(lambda line: None)
    wait_until("the runners are gone", lambda: not forgotten.alive() and not recent.alive())
    week_ago = time.time() - 8 * 24 * 3600
    stray = tmp_path / "not-a-job.txt"
    stray.touch()
    for path in (forgotten.directory, running.directory, stray):
        os.utime(path, (week_ago, week_ago))
    new = Job.start(python("print(1)"), tmp_path, "new")
    kept = {job.directory for job in (recent, running, new)}
    running.kill()
    assert set(tmp_path.iterdir()) == {*kept, stray}


def test_a_job_of_another_machine_is_not_mistaken_for_a_process_of_this_one(tmp_path: Path) -> None:
    job = Job.start(python("import time; time.sleep(60)"), tmp_path, "load")
    here = (job.directory / "group").read_text()
    (job.directory / "group").write_text(f"{here.split()[0]} worker-7")
    with pytest.raises(JobFailed, match="runs on worker-7 and can be stopped only there"):
        job.kill()
    assert job.alive()
    (job.directory / "group").write_text(here)
    job.kill()


def test_the_environment_of_a_job_is_written_nowhere(tmp_path: Path) -> None:
    command = python("import json, os; print(json.dumps(os.environ['MILLRACE_REGISTRY']))")
    job = Job.start(command, tmp_path, "load", {"MILLRACE_REGISTRY": "http://u:s3cret@r"})
    job.follow(lambda _: None)
    assert job.result() == "http://u:s3cret@r"
    files = [path for path in job.directory.iterdir() if path.name != "result"]
    assert files
    assert not any(b"s3cret" in path.read_bytes() for path in files)
