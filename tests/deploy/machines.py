"""Machines for tests: each has a network namespace, an address, /etc, /var/lib, /opt, /srv, no capabilities.

They share the kernel, the programs and the user; what an address, a port or a path in a file means is as on
real machines. Needs root and Linux' network namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace.zookeeper.embedded import JAVA_OPTIONS, find_jars, find_java
from tests.support import START_S, start_for_the_test_run
from tests.unit.deploy.files import (
    DEPLOY,
    environment,
    exec_start,
    installed,
    make_secrets,
    state_directories,
)

_ENTER = """
mount -t overlay overlay -o "ro,lowerdir=$1/etc:/etc" /etc
for folder in var/lib opt srv; do mount --bind "$1/$folder" "/$folder"; done
shift
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
"""Runs in the new mount namespace; nothing of it is seen outside."""


class Network:
    """A switch, and a machine for each name and address. `close` leaves nothing behind."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        self._prefix = f"millrace-{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._spaces: list[str] = []
        hosts = "".join(f"{address} {name} {name}.example.com\n" for name, address in addresses.items())
        try:
            self._add(self._switch)
            _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "br0", "up")
            self.machines = {
                name: self._machine(number, name, address, folder / name, hosts)
                for number, (name, address) in enumerate(addresses.items())
            }
        except BaseException:
            self.close()
            raise

    def _add(self, space: str) -> None:
        _ip("netns", "add", space)
        self._spaces.append(space)

    def _machine(self, number: int, name: str, address: str, folder: Path, hosts: str) -> Machine:
        space = f"{self._prefix}-{name}"
        self._add(space)
        port = f"port{number}"
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", space, "address", "add", f"{address}/8", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        return Machine(space, folder, hosts)

    def close(self) -> None:
        """End every process, then remove the namespaces."""
        for machine in getattr(self, "machines", {}).values():
            machine.close()
        for space in reversed(self._spaces):
            _ip("netns", "delete", space)


class Machine:
    """One machine; its files lie below `folder`."""

    def __init__(self, space: str, folder: Path, hosts: str) -> None:
        self._space, self.folder = space, folder
        self.variables: dict[str, str] = {}
        """Environment of commands that are typed here; services have it from their files."""
        self._services: dict[str, Service] = {}
        for path in ("etc/millrace", "var/lib/millrace", "opt/millrace/bin", "srv/warehouse"):
            (folder / path).mkdir(parents=True)
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for name, command in (("millrace", "-m millrace.cli"), ("python", "")):
            program = folder / "opt/millrace/bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            program.chmod(0o755)

    def install(self, source: Path, target: str) -> None:
        """Copy a file to where it stands on this machine."""
        path = self.folder / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)

    def _enter(self, *command: str) -> list[str]:
        inside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _ENTER, "sh"]
        return ["nsenter", f"--net=/run/netns/{self._space}", *inside, str(self.folder), *command]

    def run(self, *command: str, stdin: str | None = None) -> str:
        """Run a command here that must succeed; return its output."""
        result = subprocess.run(
            self._enter(*command),
            env={**os.environ, **self.variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    def millrace(self, *words: str) -> str:
        """Run a `millrace` command here that must succeed; return its output."""
        return self.run("/opt/millrace/bin/millrace", *words)

    def in_background(self, *command: str, log: str) -> Service:
        """Start a command, its output in a file of the machine's folder."""
        self._services[log] = Service(self._enter(*command), self.variables, self.folder / log)
        return self._services[log]

    def get(self, url: str, token: str = "") -> str:
        """The body of an answer of 200 to who shows this token."""
        code = (
            "import sys, urllib.request as web; asked = web.Request(sys.argv[1],"
            " headers={'Authorization': 'Bearer ' + sys.argv[2]} if sys.argv[2] else {});"
            " print(web.urlopen(asked, timeout=10).read().decode())"
        )
        return self.run(sys.executable, "-c", code, url, token)

    def start(self, unit: str) -> Service:
        """Start what a unit says, with its file of variables, as systemd does."""
        command = exec_start(unit)
        variables: dict[str, str] = {}
        if command[-1] == "$MILLRACE_OPTIONS":
            name = unit.removeprefix("millrace-")
            files = (f"etc/millrace/{name}.env", "etc/millrace/security/secrets.env")
            variables = environment("".join((self.folder / file).read_text() for file in files))
            command = [*command[:-1], *variables["MILLRACE_OPTIONS"].split()]
        for state in state_directories(unit):
            (self.folder / state.lstrip("/")).mkdir(exist_ok=True)
        return self._service(unit, command, variables)

    def start_zookeeper(self, number: int, settings: Path) -> None:
        """Start ZooKeeper with /etc/zookeeper/conf/zoo.cfg and this machine's number."""
        self.install(settings, "/etc/zookeeper/conf/zoo.cfg")
        data = self.folder / "var/lib/zookeeper"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        classes = os.pathsep.join(map(str, find_jars()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [find_java(), *JAVA_OPTIONS, "-cp", classes, main, "/etc/zookeeper/conf/zoo.cfg"]
        self._service("zookeeper", command, {})

    def _service(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> Service:
        self._services[name] = Service(self._enter(*command), variables, self.folder / f"{name}.log")
        return self._services[name]

    def service(self, name: str) -> Service:
        """The service that was started last under a name."""
        return self._services[name]

    def close(self) -> None:
        for service in self._services.values():
            service.end(signal.SIGKILL)


class Service:
    """A process on a machine, its output in a file."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._said = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = start_for_the_test_run(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self.log.read_bytes()[self._said :].decode(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> None:
        """Wait for the ready line."""
        deadline = time.monotonic() + START_S
        while "ready: " not in self.output:
            assert self.running, f"{self.log.name}: {self.output[-3000:]}"
            assert time.monotonic() < deadline, f"{self.log.name} is not ready: {self.output[-3000:]}"
            time.sleep(0.05)

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        return self._process.wait(START_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait; the exit code."""
        if self.running:
            self._process.send_signal(number)
        return self.wait()


def why_not() -> str:
    """Return the reason why this machine can hold no machines; empty if it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    missing = [name for name in ("ip", "nsenter", "unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install iproute2 util-linux"
    probe = "ip link add br0 type bridge && ip link add eth0 type veth peer name eth1"
    done = subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True, check=False)
    return "" if done.returncode == 0 else "the kernel makes no bridges or veth pairs"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


def two_datacenters() -> dict[str, str]:
    """Machine -> address of docs/deployment.md, one of a service in dc1, and an operator's."""
    return {row.machine: row.address for row in installed()} | {"shop": "10.1.0.9", "operator": "10.9.0.9"}


def install_all(machines: Mapping[str, Machine]) -> None:
    """Every file of docs/deployment.md where it belongs, with what each machine proves itself with."""
    for row in installed():
        machines[row.machine].install(row.source, row.target)
    machines["shop"].install(DEPLOY / "datacenters/dc1/agent.env", "/etc/millrace/agent.env")
    operator = machines["operator"]
    secrets = make_secrets(operator.folder / "srv/secrets", "shop")
    for name, machine in machines.items():
        if name != "operator":
            shutil.copytree(secrets / name, machine.folder / "etc/millrace/security")
    # An operator types commands where the folder is, in /srv/secrets.
    text = (secrets / "operator.env").read_text().replace(str(secrets), "/srv/secrets")
    operator.variables = environment(text)
