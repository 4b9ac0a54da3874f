"""Triggers that wait for the audit's verdict on a topic's hours without a worker, for a task or to start a
DAG.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID, MillraceHook
from millrace_airflow.waiting import Decision, Step, ask

HOUR = timedelta(hours=1)
ASKING = ThreadPoolExecutor(8, "ask the auditor")
"""Threads of their own: an auditor that hangs must not block the threads that all triggers share."""
ARGUMENTS = ("conn_id", "topic", "start", "end", "until", "unknown_until", "poke_interval")


async def _asked(*question: Any) -> Decision:
    return await asyncio.get_running_loop().run_in_executor(ASKING, ask, *question)


class CompletenessTrigger(BaseTrigger):
    """Fires when the wait is over: the hours are complete or beyond repair, or time is up.

    All times are ISO 8601 with an offset. The deadlines are times, not durations, so a restarted triggerer
    does not begin the wait again.
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
        """Yield one event: the step to take and its reason."""
        start, end = datetime.fromisoformat(self.start), datetime.fromisoformat(self.end)
        until = datetime.fromisoformat(self.until)
        unknown_until = datetime.fromisoformat(self.unknown_until) if self.unknown_until else None
        pause = min(1.0, self.poke_interval)
        while True:
            # For each question: address and token may change while the hours are waited for.
            auditor = (await MillraceHook(self.conn_id).aget_conn()).auditor
            decision = await _asked(auditor, self.topic, start, end, until, unknown_until)
            if decision.step is not Step.WAIT:
                yield TriggerEvent({"step": decision.step.value, "reason": decision.reason})  # type: ignore[no-untyped-call]
                return
            self.log.info("waiting: %s", decision.reason)
            await asyncio.sleep(pause)
            # Most hours become complete moments after the load that was missing.
            pause = min(1.5 * pause, self.poke_interval)


def proved_hours(topic: str, conn_id: str = DEFAULT_CONN_ID, poke_interval: float = 60.0) -> Asset:
    """Return the asset with an event for each hour of a topic that the audit proves, to schedule a DAG."""
    trigger = ProvedHoursTrigger(conn_id=conn_id, topic=topic, poke_interval=poke_interval)
    uri = f"millrace://{conn_id}/proved/{topic}"
    return Asset(
        uri=uri, group="millrace", watchers=[AssetWatcher(name=f"{conn_id} {topic}", trigger=trigger)]
    )


class ProvedHoursTrigger(BaseEventTrigger):
    """Fires once for each of the last 48 hours that the audit has proved.

    Airflow's state holds the hours whose events were sent. An hour is added one pause after its event, when
    Airflow has stored the event. So a triggerer that is killed may send an event twice, but never omits one.
    """

    def __init__(self, *, conn_id: str, topic: str, poke_interval: float = 60.0, hours: int = 48) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.topic = topic
        self.poke_interval = poke_interval
        self.hours = hours

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "millrace_airflow.triggers.completeness.ProvedHoursTrigger", {
            name: getattr(self, name) for name in ("conn_id", "topic", "poke_interval", "hours")
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each proved hour, with topic, start, end and the audit's line. Never end."""
        state = self.asset_state_store
        assert state is not None, "only Airflow's triggerer runs it: give it to an AssetWatcher"
        stored: Any = await state.aget("proved", [])
        sent: list[Any] = list(stored)
        while True:
            last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
            ended = [last - HOUR * back for back in range(self.hours, 0, -1)]
            for start in ended:
                if start.isoformat() not in sent and (reason := await self._proof(start)):
                    sent.append(start.isoformat())
                    hour = {"start": start.isoformat(), "end": (start + HOUR).isoformat()}
                    yield TriggerEvent({"topic": self.topic, **hour, "reason": reason})  # type: ignore[no-untyped-call]
            await asyncio.sleep(self.poke_interval)
            sent = [hour for hour in sent if hour >= ended[0].isoformat()]
            await state.aset("proved", sent)

    async def _proof(self, start: datetime) -> str:
        """Return the audit's line on a proved hour; empty if it is not proved, or without an answer."""
        auditor = (await MillraceHook(self.conn_id).aget_conn()).auditor
        never = datetime.max.replace(tzinfo=UTC)
        decision = await _asked(auditor, self.topic, start, start + HOUR, never, None)
        return decision.reason if decision.step is Step.GO_ON else ""
