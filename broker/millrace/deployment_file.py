"""The deployment file of `millrace up`, and the addresses that commands take from it.

A command that is given no address takes it from `millrace.toml` in the current folder, and `--bootstrap dc1`
means the brokers of the file's cluster dc1. This module starts nothing: millrace_demo.up does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from millrace.config import LogConfig, load
from millrace.zookeeper.embedded import HEAP_MB

FILE = "millrace.toml"
_BROKERS = frozenset({"--bootstrap", "--origin-bootstrap", "--log"})
_ASKED_BY_CHANGES = frozenset(
    {
        *("produce", "publish-access-log", "drain", "allow", "deny", "remove"),
        *("create", "alter", "delete", "elect", "seek"),
    }
)
"""Commands that change a cluster: their user names it."""
_ALSO = frozenset({"--auditor", "--topics-file", "consume --registry", "promote --registry"})
"""Options that are filled in although their commands can do without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfig:
    """Topics that a cluster mirrors from its origins."""

    origins: Sequence[str]
    """Names of clusters in the same file."""
    topics: Sequence[str] = ()
    """Topics that the brokers copy continuously."""
    batch_topics: Sequence[str] = ()
    """Topics for which only target partitions are created; the Spark batch mirror fills them."""
    by_mirrormaker: bool = False
    """True if a MirrorMaker 2 of your own copies the topics, into a cluster that has a `bootstrap`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One cluster: its brokers' addresses, its topics and its mirrors."""

    brokers: Sequence[str] = ()
    """HOST:PORT of each broker to start; port 0 takes a free port."""
    metrics: Sequence[str] = ()
    """HOST:PORT of each broker's metrics, in the brokers' order; empty: none."""
    bootstrap: str = ""
    """Instead of `brokers`: HOST:PORT[,HOST:PORT...] of a cluster that runs already, for example an Apache
    Kafka. It is neither started nor stopped."""
    replicas: int = 1
    """Replicas of each partition of a new topic; at most as many as there are `brokers`."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics to create at the start, with their number of partitions."""
    log: LogConfig = field(default_factory=LogConfig)
    mirror: MirrorConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """Everything that `millrace up` starts."""

    data_dir: str = "millrace-data"
    zookeeper: str = "127.0.0.1:2181"
    registry: str = "127.0.0.1:8081"
    auditor: str = "127.0.0.1:8082"
    security: str = ""
    """A folder of `millrace security init`, created if it is missing. With it everything but ZooKeeper uses
    TLS, every process logs in as a user of its own with the rights that it needs, and registry and auditor
    ask for a token. Empty: no security."""
    zookeeper_heap_mb: int = HEAP_MB
    """Most memory of ZooKeeper's heap."""
    topics_file: str = ""
    """File of topics (docs/configuration.md) for all processes; empty: the environment's."""
    warehouse: str = ""
    """Folder or URI of the warehouse whose loads are counted for the auditor; empty: none."""
    audit_interval_ms: int = 1000
    """Interval at which auditing readers publish counts."""
    grace_s: int = 60
    """Seconds after a window's end before which its verdict cannot be final."""
    clusters: Mapping[str, ClusterConfig]
    """Clusters by name, in the order of their start; the cluster with `mirror` is the aggregate cluster."""

    @property
    def aggregate(self) -> str:
        """Name of the first cluster with a mirror; empty if there is none."""
        return next((name for name, cluster in self.clusters.items() if cluster.mirror is not None), "")

    @property
    def bootstraps(self) -> Mapping[str, str]:
        """Bootstrap addresses of each cluster."""
        return {name: each.bootstrap or ",".join(each.brokers) for name, each in self.clusters.items()}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Values of the options that name a part which all clusters share, such as `--registry`."""
        scheme = "https" if self.security else "http"
        return {
            "--registry": f"{scheme}://{self.registry}",
            "--auditor": f"{scheme}://{self.auditor}",
            "--zookeeper": self.zookeeper,
            "--warehouse": self.warehouse,
            "--topics-file": self.topics_file,
        }


_NO_DEFAULT = click.Option(["--any"]).default
"""click's mark of an option without a default, which differs between its versions."""


class Brokers(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """HOST:PORT of brokers, or the name of a cluster of the deployment."""

    name = "HOST:PORT"

    def __init__(self, bootstraps: Mapping[str, str]) -> None:
        self._bootstraps = bootstraps

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return self._bootstraps.get(value, value)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return f"Name a cluster of {FILE} ({', '.join(self._bootstraps)}), or give HOST:PORT."


def with_addresses(command: click.Command) -> click.Command:
    """Return the command with the addresses of the current folder's deployment as its defaults.

    Options and environment variables override them. Most options that a command can do without get none,
    because they ask for more work. Without a file the command is returned as it is. Raise ConfigError for a
    file that cannot be used.
    """
    return _filled(command, load(UpConfig, Path(FILE))) if Path(FILE).exists() else command


def explain_missing(error: click.MissingParameter) -> click.MissingParameter:
    """Return the error with the file that would give the address, unless the current folder has one."""
    option = error.param.opts[0] if error.param is not None else ""
    if option in ("--bootstrap", "--registry", "--warehouse", "--zookeeper") and not Path(FILE).exists():
        remedy = f"Give it, or run the command in the folder of your {FILE}."
        return click.MissingParameter(remedy, ctx=error.ctx, param=error.param)
    return error


def _filled(command: click.Command, deployment: UpConfig) -> click.Command:
    filled = copy.copy(command)
    if isinstance(filled, click.Group):
        filled.commands = {name: _filled(below, deployment) for name, below in filled.commands.items()}
    else:
        filled.params = [_with_default(filled.name or "", each, deployment) for each in filled.params]
    return filled


def _with_default(command: str, parameter: click.Parameter, deployment: UpConfig) -> click.Parameter:
    """Return a command's parameter with its default from the deployment, if the deployment has one."""
    option = parameter.opts[0]
    is_needed = parameter.required or bool(isinstance(parameter.default, str) and parameter.default)
    filled = copy.copy(parameter)
    if option in _BROKERS:
        filled.type = Brokers(deployment.bootstraps)
        if option == "--bootstrap" and is_needed:
            asks = command in _ASKED_BY_CHANGES or not deployment.aggregate
            filled.required = asks
            filled.default = _NO_DEFAULT if asks else deployment.bootstraps[deployment.aggregate]
    elif (value := deployment.addresses.get(option)) and (
        is_needed or _ALSO & {option, f"{command} {option}"}
    ):
        filled.required, filled.default = False, value
    if isinstance(filled, click.Option) and filled.default != parameter.default:
        filled.show_default = True
    return filled
