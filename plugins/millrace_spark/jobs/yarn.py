"""Drivers on YARN: submission by spark-submit, state and end through the ResourceManager's REST port.

A driver's id is a tag of its application, known before the submission: at no moment does an application exist
that no command can find. The driver's script holds its job, so that only the driver's container gets it:
other files of an application go to executors, too. The driver deletes both copies of the script before it
begins. So a second attempt of YARN's own would find no script, and end without having begun.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx

from millrace.errors import ConfigError, MillraceError
from millrace_spark.jobs.drivers import UNKNOWN, DriverState, SentJob
from millrace_spark.jobs.submit import DEPLOY_MODE, DRIVER, send
from millrace_warehouse.storage.gss import ByTicket
from millrace_warehouse.storage.hadoop_http import hadoop_client
from millrace_warehouse.storage.hadoop_settings import CA_VARIABLE, hadoop_user, listed, read_settings

TIMEOUT_S = 20.0
TAGS = "spark.yarn.tags"
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings that Spark itself does not show. They travel with the job."""
_WAITING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
_ENDED = ("FINISHED", "FAILED", "KILLED")
# Spark's zip of PySpark comes last, for Python compiles imports from a zip again each time.
_SCRIPT = """import sys
sys.path.sort(key=lambda path: path.endswith(".zip"))
from millrace_spark.jobs.yarn import run
run({!r})
"""


class Yarn:
    """The ResourceManagers that yarn-site.xml names. Only the active one answers."""

    def __init__(self, archives: Sequence[str]) -> None:
        self._archives = archives
        self._ids: dict[str, str] = {}
        self._places = web_addresses(read_settings())
        self._http = hadoop_client(
            os.environ.get(CA_VARIABLE, ""),
            auth=ByTicket(),
            headers={"Accept": "application/json"},
            params={"user.name": hadoop_user()},
            timeout=TIMEOUT_S,
        )
        weakref.finalize(self, self._http.close)

    def submit(self, sent: SentJob) -> str:
        """Submit an application, and return its tag when YARN has accepted it."""
        tag = sent.driver.tag
        secret = {key: value for key, value in sent.conf.items() if _SECRET.search(key)}
        script = _SCRIPT.format(dataclasses.replace(sent, conf=secret).packed())
        conf = {key: value for key, value in sent.conf.items() if key not in secret} | {
            DEPLOY_MODE: "cluster",
            "spark.yarn.submit.waitAppCompletion": "false",
            "spark.yarn.maxAppAttempts": "1",
            TAGS: ",".join(filter(None, (sent.conf.get(TAGS), tag))),
        }
        send(sent.job, script, "yarn", conf, self._archives)
        return tag

    def state(self, driver: str) -> DriverState:
        """Return the state of the application with this tag."""
        if (found := self._application(driver)) is None:
            forgotten = " (YARN has forgotten it, or does not show it to this user)"
            return DriverState(UNKNOWN, ended=True, output="in YARN's logs", reason=forgotten)
        said = " ".join(str(found.get("diagnostics", "")).split())[:300]
        return DriverState(
            found["finalStatus"] if found["state"] == "FINISHED" else found["state"],
            ended=found["state"] in _ENDED,
            waiting=found["state"] in _WAITING,
            output=f"in `yarn logs -applicationId {found['id']}`",
            reason=f" ({said})" if said else "",
        )

    def kill(self, driver: str) -> None:
        """End the application, unless it has ended."""
        found = self._application(driver)
        if found is not None and found["state"] not in _ENDED:
            self._ask("PUT", f"apps/{found['id']}/state", json={"state": "KILLED"})

    def _application(self, tag: str) -> Mapping[str, Any] | None:
        if tag in self._ids:
            return self._ask("GET", f"apps/{self._ids[tag]}").get("app")
        found = self._ask("GET", "apps", params={"applicationTags": tag}).get("apps") or {}
        tagged = (app for app in found.get("app", ()) if tag in app.get("applicationTags", "").split(","))
        if (application := next(tagged, None)) is not None:
            self._ids[tag] = application["id"]
        return application

    def _ask(self, method: str, path: str, **content: Any) -> Mapping[str, Any]:
        """Return the active ResourceManager's answer: {} for an application that it does not know."""
        reasons = []
        for place in self._places:
            try:
                response = self._http.request(method, f"{place}/ws/v1/cluster/{path}", **content)
                answer: Mapping[str, Any] = response.json()
                if response.is_success and any(answer.values()):
                    return answer
                # A ResourceManager that starts answers before it knows its applications.
                info = self._http.get(f"{place}/ws/v1/cluster/info").json()
                if (state := info.get("clusterInfo", {}).get("haState")) != "ACTIVE":
                    raise ValueError(f"its state is {state}")
                if response.is_success or response.status_code == httpx.codes.NOT_FOUND:
                    return {}
                raise ValueError(answer.get("RemoteException", {}).get("message", response.status_code))
            except (httpx.HTTPError, ValueError) as error:
                reasons.append(f"{place}: {str(error) or type(error).__name__}")
        raise MillraceError(
            f"no ResourceManager takes {method} requests ({'; '.join(reasons)}): check its web address in"
            " yarn-site.xml, and that this user may see and end applications"
        )


def web_addresses(settings: Mapping[str, str]) -> list[str]:
    """Return the URLs of the ResourceManagers. Raise ConfigError when the configuration names none."""
    tls = settings.get("yarn.http.policy") == "HTTPS_ONLY"
    scheme, key, port = ("https", "webapp.https.address", 8090) if tls else ("http", "webapp.address", 8088)
    found = []
    for name in [f".{name}" for name in listed(settings, "yarn.resourcemanager.ha.rm-ids")] or [""]:
        host = settings.get(f"yarn.resourcemanager.hostname{name}", "")
        address = settings.get(f"yarn.resourcemanager.{key}{name}") or (host and f"{host}:{port}")
        found += [f"{scheme}://{address}"] if address else []
    if not found:
        raise ConfigError(
            "no ResourceManager in yarn-site.xml: set HADOOP_CONF_DIR or YARN_CONF_DIR to the folder with the"
            " cluster's configuration"
        )
    return found


def run(packed: str) -> NoReturn:
    """Run a driver on YARN: called by its script, which is deleted."""
    from pyspark import SparkContext

    from millrace_spark.jobs import entry

    entry.begin()
    SparkContext._ensure_initialized()
    java: Any = SparkContext._jvm
    staged = java.org.apache.hadoop.fs.Path(os.environ["SPARK_YARN_STAGING_DIR"], DRIVER)
    staged.getFileSystem(java.org.apache.hadoop.conf.Configuration()).delete(staged, False)
    Path(sys.argv[0]).resolve().unlink()
    # The configuration of the command, which Spark has sent.
    os.environ["HADOOP_CONF_DIR"] = str(Path("__spark_conf__", "__hadoop_conf__").absolute())
    sent = SentJob.unpacked(packed)
    entry.run_sent(sent, sent.driver.tag)
