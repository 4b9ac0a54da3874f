"""Drivers on a standalone Spark cluster, through its master's REST port: submission, state and end.

spark-submit itself refuses Python in cluster mode there ("not supported for python applications on standalone
clusters"). The master accepts it when the class to run is spark-submit's own. Depends on no particular job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from millrace.config import parse_addresses
from millrace.errors import MillraceError

REST_PORT = "spark.master.rest.port"
"""Spark's own setting: the port where a master listens for submissions."""
DEFAULT_REST_PORT = "6066"
TIMEOUT_S = 20.0
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_STANDBY = "Current state is not alive"
"""Text in the answer of a standby master."""
_ENDED = ("FINISHED", "KILLED", "FAILED", "ERROR")


@dataclass(frozen=True, slots=True)
class DriverState:
    """A driver's state, as the master reports it."""

    word: str
    """Spark's name of the state: SUBMITTED, RUNNING, FINISHED ...; UNKNOWN for an unknown driver."""
    worker: str = ""
    """HOST:PORT of the worker that runs the driver."""

    @property
    def ended(self) -> bool:
        return self.word in _ENDED

    @property
    def unknown(self) -> bool:
        return self.word == "UNKNOWN"


class Master:
    """The masters of spark://HOST:PORT[,HOST:PORT]. Only the active master accepts requests."""

    def __init__(self, url: str, conf: Mapping[str, str]) -> None:
        port = conf.get(REST_PORT, DEFAULT_REST_PORT)
        hosts = [host for host, _ in parse_addresses(url.removeprefix("spark://"), "--master")]
        self._url = url
        self._places = [f"http://{host}:{port}/v1/submissions" for host in hosts]

    def submit(
        self,
        name: str,
        arguments: Sequence[str],
        properties: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> str:
        """Start a driver with these arguments of spark-submit. Return the driver's id.

        Every user of the driver's machine can read `arguments` and `properties`. Only the driver's user can
        read its environment.
        """
        answer = self._ask(
            "POST",
            "create",
            {
                "action": "CreateSubmissionRequest",
                "clientSparkVersion": "",
                "appResource": "",
                "mainClass": _SUBMIT,
                "appArgs": ["--master", self._url, "--deploy-mode", "client", "--name", name, *arguments],
                "sparkProperties": {"spark.master": self._url, "spark.app.name": name, **properties},
                "environmentVariables": dict(environment),
            },
        )
        return str(answer["submissionId"])

    def state(self, driver: str) -> DriverState:
        """Return a driver's state. Raise MillraceError when no active master answers."""
        answer = self._ask("GET", f"status/{driver}")
        return DriverState(answer.get("driverState") or "UNKNOWN", answer.get("workerHostPort") or "")

    def kill(self, driver: str) -> None:
        """Ask the master to end a driver. A driver that has ended stays as it is."""
        self._ask("POST", f"kill/{driver}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the first active master's answer. A standby master reports its state in `message`."""
        reasons = []
        for place in self._places:
            try:
                # Hosts inside the cluster: no proxy from the environment applies.
                response = httpx.request(
                    method, f"{place}/{path}", json=body, timeout=TIMEOUT_S, trust_env=False
                )
                answer: Mapping[str, Any] = response.json()
            except (httpx.HTTPError, ValueError) as error:
                reasons.append(f"{place}: {error or type(error).__name__}")
                continue
            message = next(iter(str(answer.get("message", "")).splitlines()), "")
            failed = body is not None and not answer.get("success")
            if not failed and answer.get("action") != "ErrorResponse" and _STANDBY not in str(answer):
                return answer  # maybe a failure, too: of a driver that is unknown, or that has ended
            reasons.append(f"{place}: {message}")
        raise MillraceError(
            f"no master of {self._url} takes {path.partition('/')[0]} requests ({'; '.join(reasons)}): set"
            f" spark.master.rest.enabled=true for the master, and {REST_PORT} here if it is not"
            f" {DEFAULT_REST_PORT}"
        )
