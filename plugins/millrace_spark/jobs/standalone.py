"""Drivers on a standalone Spark cluster, through its master's REST port: submission, state and end.

spark-submit itself refuses Python in cluster mode there ("not supported for python applications on standalone
clusters"). The master accepts it when the class to run is spark-submit's own. Depends on no particular job.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

import millrace_spark
from millrace.config import parse_addresses
from millrace.errors import MillraceError
from millrace_spark.jobs.drivers import UNKNOWN, DriverState, SentJob
from millrace_spark.jobs.submit import FAST_START

REST_PORT = "spark.master.rest.port"
"""Spark's own setting: the port where a master listens for submissions."""
DEFAULT_REST_PORT = "6066"
TIMEOUT_S = 20.0
SENT = "MILLRACE_SENT_JOB"
"""Environment variable with a driver's job."""
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_STANDBY = "Current state is not alive"
"""Text in the `message` of a standby master."""
_WAITING = ("SUBMITTED", "RELAUNCHING")
_ENDED = ("FINISHED", "KILLED", "FAILED", "ERROR", UNKNOWN)


class Master:
    """The masters of spark://HOST:PORT[,HOST:PORT]. Only the active master accepts requests."""

    def __init__(self, url: str, conf: Mapping[str, str]) -> None:
        port = conf.get(REST_PORT, DEFAULT_REST_PORT)
        hosts = [host for host, _ in parse_addresses(url.removeprefix("spark://"), "--master")]
        self._url = url
        self._places = [f"http://{host}:{port}/v1/submissions" for host in hosts]

    def submit(self, sent: SentJob) -> str | None:
        """Start a driver. Return the id that the master gives it, or None if the answer is lost.

        Every user of the driver's machine can read the arguments and the settings that a JVM needs at its
        start. Only the driver's user can read its environment.
        """
        name = f"millrace {sent.job}"
        script = str(Path(millrace_spark.__path__[0], "jobs", "script.py"))
        options = ["--master", self._url, "--deploy-mode", "client", "--name", name]
        at_start = {key: value for key, value in sent.conf.items() if key.startswith("spark.driver.")}
        python = sent.conf.get("spark.pyspark.python", sys.executable)
        request = {
            "action": "CreateSubmissionRequest",
            "clientSparkVersion": "",
            "appResource": "",
            "mainClass": _SUBMIT,
            "appArgs": [*options, script, sent.job],
            "sparkProperties": {
                "spark.master": self._url,
                "spark.app.name": name,
                "spark.driver.extraJavaOptions": FAST_START,
                **at_start,
            },
            "environmentVariables": {
                **sent.environment,
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                SENT: sent.packed(),
            },
        }
        return self._ask("POST", "create", request).get("submissionId")

    def state(self, driver: str) -> DriverState:
        """Return a driver's state. Raise MillraceError when no active master answers."""
        answer = self._ask("GET", f"status/{driver}")
        word, worker = answer.get("driverState") or UNKNOWN, answer.get("workerHostPort") or "its worker"
        output = f"on the page of {worker}"
        return DriverState(word, ended=word in _ENDED, waiting=word in _WAITING, output=output)

    def kill(self, driver: str) -> None:
        """Ask the master to end a driver. A driver that has ended stays as it is."""
        self._ask("POST", f"kill/{driver}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the first active master's answer, or {} if it may have taken a driver without an answer."""
        reasons = []
        for place in self._places:
            try:
                # Hosts inside the cluster: no proxy from the environment applies.
                response = httpx.request(
                    method, f"{place}/{path}", json=body, timeout=TIMEOUT_S, trust_env=False
                )
                answer: Mapping[str, Any] = response.json()
                failed = body is not None and not answer.get("success")
                if not failed and answer.get("action") != "ErrorResponse" and _STANDBY not in str(answer):
                    return answer  # maybe a failure, too: of a driver that is unknown, or that has ended
                raise ValueError(str(answer.get("message", response.status_code)).partition("\n")[0])
            except (httpx.HTTPError, ValueError) as error:
                not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | ValueError)
                if body is not None and not not_sent:
                    return {}
                reasons.append(f"{place}: {str(error) or type(error).__name__}")
        raise MillraceError(
            f"no master of {self._url} takes {path.partition('/')[0]} requests ({'; '.join(reasons)}): set"
            f" spark.master.rest.enabled=true for the master, and {REST_PORT} here if it is not"
            f" {DEFAULT_REST_PORT}"
        )
