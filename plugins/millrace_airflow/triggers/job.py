"""Trigger that waits for a job, which runs as a separate process, without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from millrace_airflow.job import Job, JobFailed

LOST_S = 60.0
"""Seconds for which a job's folder may be invisible. After them the triggerer must be on another machine."""
ASK_S, KILL_S = 10.0, 8.0
"""Seconds for asking and for killing. One question and two kills fit into the 30 seconds that Airflow gives
`on_kill`.
"""
DEFERRED = "deferred"


class JobTrigger(BaseTrigger):
    """Fires when the job in a folder has ended. A restarted triggerer looks at the folder again.

    The triggerer must see the folder. To stop the job, it must run on the machine that started the job.
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
        """Yield one event with the folder, `timed_out` and `lost`.

        `timed_out`: the deadline, in seconds since the epoch, ended the wait. `lost`: this machine cannot see
        the folder.
        """
        job, seen = Job(Path(self.directory)), time.monotonic()
        said = {"directory": self.directory, "timed_out": False, "lost": False}
        while not (said["timed_out"] or said["lost"]):
            try:
                if await asyncio.to_thread(job.ended):
                    break
                seen = time.monotonic()
            except (JobFailed, OSError) as error:  # a mount may be missing for a moment
                self.log.warning("cannot see the job: %s", error)
                said["lost"] = time.monotonic() - seen > LOST_S
            if self.deadline is not None and time.time() > self.deadline:
                said["timed_out"] = True
                with suppress(JobFailed, OSError):  # else the task stops it, or reports that it cannot
                    await asyncio.to_thread(job.kill, KILL_S)
            await asyncio.sleep(self.poll_s)
        yield TriggerEvent(said)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Stop the job of a task that a user cleared, or whose state a user set by hand.

        Airflow also calls this in a triggerer that was suspended, after another triggerer has taken over the
        trigger.
        """
        if not await self._is_deferred():
            await asyncio.to_thread(Job(Path(self.directory)).kill, KILL_S)

    async def _is_deferred(self) -> bool:
        task = self.task_instance
        if task is None:
            return False
        asking = asyncio.to_thread(
            RuntimeTaskInstance.get_task_states,
            dag_id=task.dag_id,
            task_ids=[task.task_id],
            run_ids=[task.run_id],
            map_index=task.map_index,
        )
        try:
            states = await asyncio.wait_for(asking, ASK_S)
        except Exception:
            self.log.exception("the task's state is not known: the job is stopped")
            return False
        return DEFERRED in states.get(task.run_id, {}).values()
