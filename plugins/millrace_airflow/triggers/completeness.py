"""Waits for the audit's verdict on a topic's hours, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from millrace_airflow.hooks.millrace import MillraceHook
from millrace_airflow.waiting import Step, ask

ARGUMENTS = ("conn_id", "topic", "start", "end", "until", "unknown_until", "poke_interval")


class CompletenessTrigger(BaseTrigger):
    """Fires when there is no more to wait for: complete, beyond repair, or out of time.

    All times are ISO 8601 with an offset. The deadlines are times, not durations: a triggerer that is
    restarted does not begin to wait anew.
    """

    def __init__(
        self,
        *,
        conn_id: str,
        topic: str,
        start: str,
        end: str,
        until: str,
        unknown_until: str | None,
        poke_interval: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.topic = topic
        self.start = start
        self.end = end
        self.until = until
        self.unknown_until = unknown_until
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "millrace_airflow.triggers.completeness.CompletenessTrigger", {
            name: getattr(self, name) for name in ARGUMENTS
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: the step to take and the reason for it."""
        auditor = (await MillraceHook(self.conn_id).aget_conn()).auditor
        start, end = datetime.fromisoformat(self.start), datetime.fromisoformat(self.end)
        until = datetime.fromisoformat(self.until)
        unknown_until = datetime.fromisoformat(self.unknown_until) if self.unknown_until else None
        pause = min(1.0, self.poke_interval)
        while True:
            judgement = await asyncio.to_thread(ask, auditor, self.topic, start, end, until, unknown_until)
            if judgement.step is not Step.WAIT:
                yield TriggerEvent({"step": judgement.step.value, "reason": judgement.reason})  # type: ignore[no-untyped-call]
                return
            self.log.info("waiting: %s", judgement.reason)
            await asyncio.sleep(pause)
            # Most hours become complete moments after the load that was missing.
            pause = min(1.5 * pause, self.poke_interval)
