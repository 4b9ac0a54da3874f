"""Secrets of a driver on YARN. Passwords are in its script alone, and that is gone when the driver begins.
Keys stay in keytabs, and tokens in files that only their user can read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.canary import Secrets, Watch, files_with
from tests.hadoop.conftest import USER, secrets_of
from tests.peers.kdc import REALM
from tests.support import run_millrace, wait_until

if TYPE_CHECKING:
    from tests.hadoop.yarn_world import YarnWarehouse, YarnWorld

pytest_plugins = ["tests.hadoop.yarn_world"]
EVENTS = 500
COMMANDS = r"millrace\.cli|spark-submit|spark-class|launcher\.Main|SparkSubmit"
"""The command's own processes, which inherit its environment."""


@contextmanager
def scripts_watched(local: Path) -> Iterator[dict[Path, bool]]:
    """Every driver's script that is seen below a folder, and whether other users could read it."""
    seen: dict[Path, bool] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            with suppress(OSError):  # what is deleted meanwhile
                for path in local.glob("usercache/*/filecache/*/driver.py"):
                    folders = [each for each in path.parents if each.is_relative_to(local)]
                    entered = all(each.stat().st_mode & 0o001 for each in folders)
                    seen[path] = entered and bool(path.stat().st_mode & 0o004)

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    stop.set()
    thread.join()


def test_a_drivers_secrets_are_in_its_script_alone_and_that_is_gone_once_read(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse, keytab: Path
) -> None:
    topic, folder = yarn_warehouse.site.topic("Secrets", 2), yarn_world.yarn.folder
    yarn_warehouse.produce(topic, EVENTS)
    local, secrets = folder / "nodemanager1" / "local", Secrets()
    script = Secrets()
    script.know("a driver's script", "from millrace_spark.jobs.yarn import run\n")
    folders = (folder, yarn_world.hdfs.folder)
    others = {path for each in folders for path in files_with(script, each)}
    secrets.make("registry")
    login = secrets.login("registry", "ours")
    environment = {
        "MILLRACE_REGISTRY": yarn_warehouse.site.registry.replace("http://", f"http://{login}@"),
        "AWS_SECRET_ACCESS_KEY": secrets.make("aws"),
        "MILLRACE_SPARK_CONF": f'{{"spark.hadoop.a.password": "{secrets.make("conf")}"}}',
    }
    places = [
        "--warehouse",
        yarn_warehouse.uri,
        "--bootstrap",
        yarn_warehouse.site.cluster.bootstrap,
        "--json",
    ]
    may_know = dict.fromkeys(("registry", "registry in a header", "aws", "conf"), COMMANDS)
    kerberos = secrets_of(keytab, owner=f"{USER}@{REALM}", renewer="yarn")
    with (
        Watch(secrets, folder, may_know, []) as watch,
        Watch(kerberos, folder / "nodemanager1" / "logs", {}, []) as watch_of_kerberos,
        scripts_watched(local) as scripts,
    ):
        done = run_millrace("load", topic, *places, *yarn_world.yarn.cluster_mode, env=environment)
    assert done.returncode == 0, done.stderr
    assert watch.failure is None
    assert watch.sightings == set()
    assert watch.seen["environment"] > 0
    assert (watch_of_kerberos.failure, watch_of_kerberos.sightings) == (None, set())
    assert "a token in bytes" in str(files_with(kerberos, folder)), "the search finds a token"
    assert scripts, "the driver's script was seen"
    assert not any(scripts.values()), scripts
    answers = "".join(str(yarn_world.yarn.ask(path)) for path in ("apps", "info", "scheduler"))
    said = (done.stdout + done.stderr + answers).encode()
    assert secrets.within(said) == kerberos.within(said) == []

    def is_gone() -> bool:
        found = {path for each in folders for path in files_with(script, each)}
        return found <= others and not any(files_with(secrets, each) for each in folders)

    # The job has left no secret on the nodes and in HDFS, and no script, which has the secrets packed.
    # The DataNode deletes a block some seconds after its file.
    wait_until("nothing is left", is_gone)
    yarn_warehouse.check(topic)
