"""The image is built with buildah and runs; the compose file's commands are those of the product."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from millrace.cli import cli
from millrace.config import BrokerConfig, load
from millrace.zookeeper.embedded import find_jars, find_java
from tests.brokers import free_port
from tests.support import REPOSITORY, START_S, start_for_the_test_run, wait_until
from tests.unit.deploy.files import DEPLOY

FOLDER = DEPLOY / "container"
BASE = REPOSITORY / ".cache" / "deploy" / "base.tar"
BUILD_S = 1800.0


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services().items() if service["image"].startswith("millrace:")}


def test_every_service_of_the_compose_file_has_arguments_that_its_command_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []
    for service in ours().values():
        command, *words = service["command"]
        started.append(command)
        words = [str(FOLDER / Path(word).name) if word.endswith(".toml") else word for word in words]
        with monkeypatch.context() as patch:
            for name, value in service["environment"].items():
                patch.setenv(name, value)
            found = cli.get_command(click.Context(cli), command)
            assert found is not None
            found.make_context(command, words)
    assert sorted(started) == ["audit-reader"] * 2 + ["auditor"] + ["broker"] * 2 + ["registry"]


def test_what_services_write_lies_in_volumes_that_the_compose_file_has() -> None:
    volumes = yaml.safe_load((FOLDER / "compose.yaml").read_text())["volumes"]
    for name, service in services().items():
        assert set(service.get("depends_on", ())) <= set(services())
        mounts = [mount.split(":") for mount in service.get("volumes", ())]
        for source, *_ in mounts:
            assert source in volumes or (FOLDER / source).is_file(), f"{name}: {source}"
        words = [*service.get("command", ()), *service["environment"].values()]
        written = re.findall(r"sqlite:///(/[\w/]+)/", " ".join(words))
        assert set(written) <= {target for _, target, *_ in mounts}


def test_each_broker_of_the_compose_file_is_where_the_others_look_for_it() -> None:
    brokers = {name: load(BrokerConfig, FOLDER / f"{name}.toml", []) for name in ("dc1", "offline")}
    wanted = {"dc1-reader": "dc1", "offline-reader": "offline", "auditor": "offline"}
    for name, broker in wanted.items():
        words, environment = services()[name]["command"], services()[name]["environment"]
        assert words[words.index("--bootstrap") + 1] == brokers[broker].listen
        assert environment["MILLRACE_ZOOKEEPER"] == brokers[broker].zookeeper
    assert brokers["offline"].mirror["dc1"].bootstrap == brokers["dc1"].listen


# What the entry point of the image zookeeper:3.9 writes, before ZOO_SERVERS and ZOO_CFG_EXTRA.
ZOO_CFG = """\
dataDir={folder}
dataLogDir={folder}
tickTime=2000
initLimit=5
syncLimit=2
autopurge.snapRetainCount=3
autopurge.purgeInterval=0
maxClientCnxns=60
standaloneEnabled=true
admin.enableServer={admin}
"""


def test_the_zookeeper_of_the_compose_file_answers_on_this_machine_and_to_no_other(tmp_path: Path) -> None:
    variables, port = services()["zookeeper"]["environment"], free_port()
    config = ZOO_CFG.format(folder=tmp_path, admin=variables.get("ZOO_ADMINSERVER_ENABLED", "true"))
    words = variables.get("ZOO_SERVERS", "server.1=localhost:2888:3888;2181").replace("2181", str(port))
    config += "\n".join([words, *variables.get("ZOO_CFG_EXTRA", "").split()])
    (tmp_path / "zoo.cfg").write_text(config)
    (tmp_path / "myid").write_text("1")
    command = [find_java(), "-cp", os.pathsep.join(map(str, find_jars()))]
    command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(tmp_path / "zoo.cfg")]
    process = start_for_the_test_run(command)

    def answers() -> bool:
        assert process.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    try:
        wait_until("ZooKeeper answers", answers, timeout_s=START_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
    finally:
        process.terminate()
        process.wait(START_S)


def why_not() -> str:
    """Name what the machine lacks to build an image; empty if nothing."""
    if os.geteuid() != 0:
        return "needs root: buildah builds with --isolation chroot"
    if shutil.which("buildah") is None:
        return "needs buildah: apt-get install buildah"
    return "" if BASE.is_file() else f"needs {BASE}: make test-deploy makes it with mmdebstrap"


class Image:
    """A container made from the image, in a store of its own below a folder."""

    def __init__(self, folder: Path) -> None:
        self._words = ["buildah", "--storage-driver", "vfs", "--root", str(folder / "root")]
        self._words += ["--runroot", str(folder / "runroot")]
        self.container = ""

    def buildah(self, *words: str, timeout_s: float = BUILD_S) -> str:
        done = subprocess.run(
            [*self._words, *words], capture_output=True, text=True, check=False, timeout=timeout_s
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def running(self, *words: str) -> list[str]:
        """The command line that runs a command in the container, in the host's network."""
        return [*self._words, "run", "--isolation", "chroot", self.container, "--", *words]


def kill_all_with(word: str) -> None:
    """End the processes that have a word in their command line: buildah ends before what it has started."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended meanwhile
            if word.encode() in command.read_bytes().split(b"\0"):
                os.kill(int(command.parent.name), signal.SIGKILL)


def of_this_machine() -> Iterator[str]:
    """Yield options that give the build's pip this machine's registry and trusted certificates."""
    for path in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(path).is_file():
            yield from ("--volume", f"{path}:{path}:ro")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "dist"), str(REPOSITORY))
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=BUILD_S)
    image = Image(folder)
    try:
        base = image.buildah("from", "scratch")
        image.buildah("add", "--quiet", base, str(BASE), "/")
        image.buildah("commit", "--quiet", base, "localhost/base")
        image.buildah("rm", base)
        options = ("--isolation", "chroot", "--build-arg", "BASE=localhost/base", *of_this_machine())
        file = ("--file", str(FOLDER / "Containerfile"), "--tag", "localhost/millrace:0.1.0")
        image.buildah("build", *options, *file, str(folder / "dist"))
        image.container = image.buildah("from", "localhost/millrace:0.1.0")
        yield image
    finally:
        with suppress(AssertionError):
            image.buildah("rm", "--all")
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_image_runs_millrace_as_a_user_without_rights(image: Image) -> None:
    found = image.buildah("inspect", "--format", "{{.OCIv1.Config}}", image.container)
    assert "/opt/millrace/bin/millrace" in found
    user = image.buildah("run", "--isolation", "chroot", image.container, "--", "id", "--user")
    assert user == "10001"
    version = image.buildah("run", "--isolation", "chroot", image.container, "--", "millrace", "--version")
    assert version.startswith("millrace, version ")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_registry_in_the_image_answers(image: Image) -> None:
    address = f"127.0.0.1:{free_port()}"
    words = ("--listen", address, "--database-url", "sqlite:////var/lib/millrace/registry.db")
    command = image.running("timeout", "--kill-after=5", "300", "millrace", "registry", *words)
    process = start_for_the_test_run(command)

    def answers() -> bool:
        assert process.poll() is None
        url = f"http://{address}/subjects"
        with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.read() == b"[]")
        return False

    try:
        wait_until("the registry answers", answers, timeout_s=START_S)
    finally:
        process.terminate()
        process.wait(START_S)
        kill_all_with(address)
