"""The process between a job and whoever started it: runs the command, then writes down how it ended.

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
    """Detach, so that the starter neither waits for the job nor takes it along when it ends."""
    directory, lock_fd = Path(sys.argv[1]), int(sys.argv[2])
    # SIGTERM goes to the whole group; the runner itself stays to write down the exit code. A handler, not
    # SIG_IGN: what is ignored stays ignored in the command.
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    # Python forgets signals that reach a child in the middle of fork: let them wait until it is done.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.setsid()
    (directory / "group").write_text(f"{os.getpid()} {socket.gethostname()}")
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    run(directory, lock_fd, stopped)


def run(directory: Path, lock_fd: int, stopped: list[int]) -> None:
    """Run the folder's command to its end and record its exit code; `stopped` fills when it should end."""
    command = json.loads((directory / "command.json").read_text())
    with (directory / "result").open("wb") as result:
        # The command keeps the lock too: should the runner be killed, the job still counts as alive.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=result, pass_fds=[lock_fd])
        if stopped:  # while the command was not yet there to be told
            process.terminate()
        exit_code = process.wait()
    shutil.rmtree(directory / "secrets", ignore_errors=True)
    status = directory / "status.json.new"
    status.write_text(json.dumps({"exit_code": exit_code}))
    status.replace(directory / "status.json")


if __name__ == "__main__":
    main()
