"""Drivers on a standalone Spark cluster, by its master's REST port: submitted, asked after, killed.

spark-submit itself refuses Python in cluster mode there ("not supported for python applications on
standalone clusters"). The master takes it when the class to run is spark-submit's own. Knows no jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from millrace.config import parse_addresses
from millrace.errors import MillraceError

REST_PORT = "spark.master.rest.port"
"""Spark's own setting: where a master listens for submissions."""
DEFAULT_REST_PORT = "6066"
TIMEOUT_S = 20.0
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_STANDBY = "Current state is not alive"
"""What a master that is not the active one says in its answer."""
_ENDED = ("FINISHED", "KILLED", "FAILED", "ERROR")


@dataclass(frozen=True, slots=True)
class DriverState:
    """What the master says of a driver."""

    word: str
    """Spark's: SUBMITTED, RUNNING, FINISHED ...; UNKNOWN when the master knows no such driver."""
    worker: str = ""
    """HOST:PORT of the worker that runs it."""

    @property
    def ended(self) -> bool:
        return self.word in _ENDED

    @property
    def unknown(self) -> bool:
        return self.word == "UNKNOWN"


class Master:
    """The masters of spark://HOST:PORT[,HOST:PORT]; the one that is active answers."""

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
        """Start a driver with these arguments of spark-submit; the driver's id.

        Everybody on the driver's machine reads `arguments` and `properties`, only its user the environment.
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
        """What has become of a driver. MillraceError when no active master answers."""
        answer = self._ask("GET", f"status/{driver}")
        return DriverState(answer.get("driverState") or "UNKNOWN", answer.get("workerHostPort") or "")

    def kill(self, driver: str) -> None:
        """Ask the master to end a driver; one that has ended stays as it is."""
        self._ask("POST", f"kill/{driver}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The answer of the first master that has one: a standby says in `message` that it is none."""
        reasons = []
        for place in self._places:
            try:
                # Inside the cluster: no proxy of the environment stands in between.
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
                return answer  # no success, too: of a driver that is unknown, or that has ended
            reasons.append(f"{place}: {message}")
        raise MillraceError(
            f"no master of {self._url} takes {path.partition('/')[0]} requests ({'; '.join(reasons)}): set"
            f" spark.master.rest.enabled=true for the master, and {REST_PORT} here if it is not"
            f" {DEFAULT_REST_PORT}"
        )
