"""The process between a job and its starter: runs the command, then writes its exit code.

Started as `python -m millrace_airflow.job_runner FOLDER LOCK_FD`; see job.py for the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Detach from the starter: it does not wait for the job, and its end does not end the job."""
    directory, lock_fd = Path(sys.argv[1]), int(sys.argv[2])
    # SIGTERM goes to the whole group; the runner itself stays to record the exit code. A handler, not
    # SIG_IGN: the command would inherit an ignored signal.
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    # Python loses signals that reach a child in the middle of fork: block them until the fork is done.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.setsid()
    write_whole(directory / "group", f"{os.getpid()} {socket.gethostname()}")
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    run(directory, lock_fd, stopped)


def run(directory: Path, lock_fd: int, stopped: list[int]) -> None:
    """Run the folder's command to its end and write its exit code. SIGTERM fills `stopped`."""
    command = json.loads((directory / "command.json").read_text())
    with (directory / "result").open("wb") as result:
        # The command keeps the lock, too: if the runner is killed, the job still counts as alive.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=result, pass_fds=[lock_fd])
        if stopped:  # before the command existed to receive the signal
            process.terminate()
        exit_code = process.wait()
    shutil.rmtree(directory / "secrets", ignore_errors=True)
    write_whole(directory / "status.json", json.dumps({"exit_code": exit_code}))


def write_whole(file: Path, text: str) -> None:
    """Write a file that is never seen in part."""
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(text)
    draft.replace(file)


if __name__ == "__main__":
    main()
