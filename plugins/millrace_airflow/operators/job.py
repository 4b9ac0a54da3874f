"""Base class of the operators that run a millrace command: starts it, waits for it, stops it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from millrace.errors import ConfigError
from millrace.urls import without_secret
from millrace_airflow.command_line import command_line, environment, run_id_of_task
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID, MillraceHook
from millrace_airflow.installation import check_installation
from millrace_airflow.job import Job, JobFailed, JobRefused
from millrace_airflow.lineage import Lineage
from millrace_airflow.links import AuditLink, ManifestLink, SparkLink
from millrace_airflow.triggers.job import JobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace_airflow.settings import MillraceSettings


class MillraceJobOperator(BaseOperator):
    """Runs one millrace command as a separate process and returns its output, parsed as JSON.

    Repeating a task is always safe. The warehouse and the brokers ensure that every record counts once; this
    class does not need to. A deferred task frees its worker slot, and a trigger watches the process.
    """

    ui_color = "#d9e8f5"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (AuditLink(), ManifestLink())
    manifest = ""
    """Path in the warehouse of the manifest that the task has written, once the task has its result."""
    lineage = Lineage()
    """Datasets that the task has read and written, once the task has its result."""
    command_name: str
    """Name of the command. Its argument is `topic`."""
    topic: str

    def __init__(
        self,
        *,
        conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_s: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.deferrable = deferrable
        self.poll_s = poll_s
        self._job: Job | None = None
        self._is_stopped = False

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        """Return the command's options from the parameters. Raise ConfigError for a wrong parameter."""
        return {}

    def named_topics(self) -> Sequence[str]:
        return [self.topic]

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """Return the command line to run, as a list of arguments."""
        return command_line(
            settings, self.command_name, self.named_topics(), run_id, **self.options(settings)
        )

    def variables(self, settings: MillraceSettings) -> dict[str, str]:
        """Return the command's environment variables."""
        return environment(settings)

    def finish(self, result: Any, context: Context) -> Any:
        """Return the task's result, given the command's output."""
        return result

    def is_final(self, printed: Any) -> bool:
        """Return True if a command that failed with this output would fail again, however often it is run."""
        return False

    def execute(self, context: Context) -> Any:
        """Start the command. Wait for it here, or defer until it has ended."""
        check_installation()
        try:
            job = self._start(MillraceHook(self.conn_id).get_conn(), context)
        except ConfigError as error:  # a user's mistake, which no retry corrects
            raise AirflowFailException(str(error)) from None
        if self.deferrable:
            job.leave_to_trigger()
            timeout = self.execution_timeout
            deadline = time.time() + timeout.total_seconds() if timeout else None
            self.defer(
                trigger=JobTrigger(str(job.directory), self.poll_s, deadline), method_name="execute_complete"
            )
        try:
            job.follow(self.log.info)
        except BaseException:
            job.kill()
            raise
        return self._complete(job, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger: repeat the job's log, then return its result or raise."""
        job = Job(Path(event["directory"]))
        if event.get("lost"):
            raise AirflowFailException(f"the triggerer cannot see {_lost_job_error(job)}")
        job.alive()  # raises when this machine cannot see the folder
        for line in job.log_lines():
            self.log.info(line)
        if event["timed_out"]:
            job.kill()  # if the triggerer could not
            job.remove()
            raise AirflowTaskTimeout(f"stopped after execution_timeout={self.execution_timeout}")
        return self._complete(job, context)

    def on_kill(self) -> None:
        self._is_stopped = True
        if self._job is not None:
            self._job.kill()

    def _start(self, settings: MillraceSettings, context: Context) -> Job:
        task = context["ti"]
        map_index = task.map_index if task.map_index is not None else -1
        run_id = run_id_of_task(task.dag_id, task.run_id, task.task_id, map_index)
        command = self.command(settings, run_id)
        self._job = Job.take_over(command, settings.job_directory, run_id)
        if self._job is not None:
            self.log.info("the worker of an earlier try died and its job continues; its log from the start:")
        else:
            variables, files = self.variables(settings), settings.client_files()
            self._job = Job.start(command, settings.job_directory, run_id, variables, files)
        if self._is_stopped:  # before the job existed
            self._job.kill()
        # Airflow hides only the passwords in a connection's own fields.
        self.log.info("%s", " ".join(map(without_secret, command)))
        self.log.info("log while it runs: %s", self._job.directory / "log")
        return self._job

    def _complete(self, job: Job, context: Context) -> Any:
        try:
            result = job.result()
        except JobFailed as error:
            # A user's mistake, which no retry corrects, or a result that stays.
            if isinstance(error, JobRefused) or self.is_final(job.printed()):
                raise AirflowFailException(str(error)) from None
            raise
        finally:
            self._job = None  # nothing is left that `on_kill` could stop
            job.remove()
        return self.finish(result, context)

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:
        """Return the lineage, which Airflow's provider for OpenLineage requests from an operator."""
        return self.lineage.facets()


def _lost_job_error(job: Job) -> str:
    """Return the error for a job whose trigger cannot see its folder. Stop the job if it runs here.

    Otherwise a retry would start a second command while the first still runs.
    """
    what = f"{job.directory}: workers and triggerers need one job_dir"
    try:
        job.kill()
        job.remove()
    except JobFailed as error:
        return f"{what}; {error}"
    return f"{what}; the job is stopped"


class SparkJobOperator(MillraceJobOperator):
    """Runs a millrace command that submits a Spark job and reads a log."""

    operator_extra_links = (AuditLink(), ManifestLink(), SparkLink())

    def __init__(self, *, spark_conf: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """Take `spark_conf`, the command's `--conf`, which overrides `spark-defaults.conf`."""
        super().__init__(**kwargs)
        self.spark_conf = dict(spark_conf or {})

    def variables(self, settings: MillraceSettings) -> dict[str, str]:
        """Return the variables with Spark's settings added. The log shows only their names."""
        if not self.spark_conf:
            return super().variables(settings)
        self.log.info("spark_conf: %s", ", ".join(self.spark_conf))
        return {**super().variables(settings), "MILLRACE_SPARK_CONF": json.dumps(self.spark_conf)}
