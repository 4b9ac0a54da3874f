"""CompletenessSensor: delays a DAG until the audit has proved its hours complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from millrace.errors import ConfigError
from millrace_airflow.command_line import INTERVAL_END, INTERVAL_START, interval
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID, MillraceHook
from millrace_airflow.links import AuditLink
from millrace_airflow.triggers.completeness import CompletenessTrigger
from millrace_airflow.waiting import Decision, Step, ask

if TYPE_CHECKING:
    from airflow.sdk import Context


class CompletenessSensor(BaseSensorOperator):
    """Succeeds when the auditor proves [start, end) as its topic requires. Returns the audit's line.

    Waits for incomplete and unknown hours until `timeout`. Fails at once on duplicates, which nothing can
    repair. A failure names tier, server, instance, sequences and reasons, and is not retried. With
    `accept_unknown_after`, an hour that is still unknown after that time, because its producers do not
    report, passes; an incomplete hour never passes.
    """

    template_fields = ("topic", "start", "end", "conn_id")
    ui_color = "#e3f0dc"
    operator_extra_links = (AuditLink(),)
    _began: datetime | None = None
    _waiting_for = ""

    def __init__(
        self,
        *,
        topic: str,
        start: str = INTERVAL_START,
        end: str = INTERVAL_END,
        conn_id: str = DEFAULT_CONN_ID,
        accept_unknown_after: timedelta | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.start = start
        self.end = end
        self.conn_id = conn_id
        self.accept_unknown_after = accept_unknown_after
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Ask once. Then defer to a trigger if deferrable, otherwise ask repeatedly."""
        # A rescheduled sensor is executed again for each question.
        first = context["ti"].get_first_reschedule_date(context) if self.reschedule else None
        began = self._began = first or datetime.now(UTC)
        if not self.deferrable:
            return self._poke_until_timeout(context)
        if (decision := self._ask(began)).step is not Step.WAIT:
            # As after a trigger: there the base class turns a failure into a skip, where that is wanted.
            event = {"step": decision.step.value, "reason": decision.reason}
            return self.resume_execution("execute_complete", {"event": event}, context)
        self.log.info("waiting: %s", decision.reason)
        start, end = interval(self.start, self.end)
        until, unknown_until = self._deadlines(began)
        return self.defer(
            trigger=CompletenessTrigger(
                conn_id=self.conn_id,
                topic=self.topic,
                start=start.isoformat(),
                end=end.isoformat(),
                until=until.isoformat(),
                unknown_until=unknown_until.isoformat() if unknown_until else None,
                poke_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=self.execution_timeout,
        )

    def _poke_until_timeout(self, context: Context) -> Any:
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            raise self._timed_out(self._waiting_for) from None

    def poke(self, context: Context) -> PokeReturnValue:
        decision = self._ask(self._began or datetime.now(UTC))
        if decision.step in (Step.WAIT, Step.TIME_IS_UP):  # the base class ends the wait
            self._waiting_for = decision.reason
            self.log.info("waiting: %s", decision.reason)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._conclude(decision))

    def execute_complete(self, context: Context, event: dict[str, str]) -> str:
        """Continue after the trigger, with the step in its event."""
        return self._conclude(Decision(Step(event["step"]), event["reason"]))

    def _ask(self, began: datetime) -> Decision:
        try:
            auditor = MillraceHook(self.conn_id).get_conn().auditor
            hours = interval(self.start, self.end)
        except ConfigError as error:  # a user's mistake, which no retry corrects
            raise AirflowFailException(str(error)) from None
        until, unknown_until = self._deadlines(began)
        return ask(auditor, self.topic, *hours, until, unknown_until)

    def _conclude(self, decision: Decision) -> str:
        if decision.step is Step.GIVE_UP:
            raise AirflowFailException(decision.reason)
        if decision.step is Step.TIME_IS_UP:
            raise self._timed_out(decision.reason)
        self.log.info(decision.reason)
        return decision.reason

    def _timed_out(self, reason: str) -> AirflowSensorTimeout:
        """Return the timeout error, with the missing events and the remedy."""
        start, end = (time.strftime("%Y-%m-%dT%H:%MZ") for time in interval(self.start, self.end))
        return AirflowSensorTimeout(
            f"timed out after {timedelta(seconds=self.timeout)}: {reason}; clear this task to wait again, or"
            f" publish the hours as they are: millrace publish {self.topic} --from {start} --to {end}"
        )

    def _deadlines(self, began: datetime) -> tuple[datetime, datetime | None]:
        accept = self.accept_unknown_after
        return began + timedelta(seconds=self.timeout), None if accept is None else began + accept
