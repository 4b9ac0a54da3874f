"""Waits for a job that runs as a process of its own, without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from millrace_airflow.job import Job, JobFailed


class JobTrigger(BaseTrigger):
    """Fires when the job in a folder has ended; a restarted triggerer simply looks again.

    The triggerer must see the folder and, to stop the job, run on the machine that started it.
    """

    def __init__(self, directory: str, poll_s: float = 1.0, deadline: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.directory = directory
        self.poll_s = poll_s
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"directory": self.directory, "poll_s": self.poll_s, "deadline": self.deadline}
        return "millrace_airflow.triggers.job.JobTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: the folder, and whether the deadline (seconds since the epoch) ended the wait."""
        job = Job(Path(self.directory))
        timed_out = False
        while not await asyncio.to_thread(_has_ended, job):
            if timed_out := self.deadline is not None and time.time() > self.deadline:
                await asyncio.to_thread(job.kill)
                break
            await asyncio.sleep(self.poll_s)
        yield TriggerEvent({"directory": self.directory, "timed_out": timed_out})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        # Somebody cleared the task or set its state by hand.
        await asyncio.to_thread(Job(Path(self.directory)).kill)


def _has_ended(job: Job) -> bool:
    try:
        return job.ended()
    except JobFailed:
        return True  # no such folder here: the task says so in its error
