"""Files to and from HDFS without Java: two requests of WebHDFS, which every NameNode and DataNode serves.

    create(path, file)   PUT op=CREATE: the NameNode names a DataNode, which takes the bytes
    fetch(path, file)    GET op=OPEN: the same, the other way round

What may be better a moment later (no answer, safe mode, a standby, a broken pipeline) is asked again within
`patience_s`, of another NameNode and another DataNode where there is one. A file that is created again
replaces what the attempt before has left: its name must be the caller's own. A closed file is not synced.

Knows HTTP, paths and Hadoop's settings for the addresses. Knows no Parquet, renames and publishes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from millrace.errors import MillraceError
from millrace_warehouse.storage.hadoop_errors import HdfsNotReady, explained

T = TypeVar("T")
PATIENCE_S = 120.0
"""How long a request is repeated, which is as long as a job waits for a NameNode before it begins."""
PAUSE_S = 1.0
_NAMENODE_S = httpx.Timeout(30.0, connect=10.0)
# A DataNode answers when its pipeline has closed: one that has lost a node takes a minute for it.
_DATANODE_S = httpx.Timeout(120.0, connect=10.0)
_RPC_PORT = 8020
_WEB = "0.0.0.0:9870"
"""Hadoop's default: this port, on the NameNode's own host."""
# Exceptions whose message says nothing about the file: the DataNode's own client has met some trouble.
_PASSING = (
    "java.io.IOException",
    "org.apache.hadoop.ipc.RetriableException",
    "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException",
)


def web_addresses(setting: Callable[[str], str | None], authority: str) -> list[str]:
    """WebHDFS of the NameNodes behind `hdfs://<authority>`, as `host:port`, by the Hadoop configuration."""
    addresses = []
    for service in _listed(setting("dfs.nameservices")):
        for node in _listed(setting(f"dfs.ha.namenodes.{service}")) or [""]:
            name = f"{service}.{node}" if node else service
            rpc = setting(f"dfs.namenode.rpc-address.{name}") or ""
            if rpc and (service == authority or _with_port(rpc) == _with_port(authority)):
                addresses.append(_on_host(setting(f"dfs.namenode.http-address.{name}") or _WEB, rpc))
    return addresses or [_on_host(setting("dfs.namenode.http-address") or _WEB, authority)]


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _with_port(address: str) -> str:
    return address if ":" in address else f"{address}:{_RPC_PORT}"


def _on_host(web: str, rpc: str) -> str:
    """The web address; one that stands for every interface is on the host of the RPC address."""
    host, _, port = web.rpartition(":")
    return f"{rpc.partition(':')[0]}:{port}" if host == "0.0.0.0" else web


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfs:
    """Where WebHDFS is and who asks; travels to the tasks."""

    addresses: Sequence[str]
    """`host:port` of the NameNodes, of which one is active."""
    user: str
    new_files: Mapping[str, str] = field(default_factory=dict)
    """Permission, replication and block size of what is created, as parameters of CREATE."""
    patience_s: float = PATIENCE_S


class _NotNow(Exception):
    """What failed may succeed a moment later."""


class _NoDataNode(_NotNow):
    """A DataNode that was named does not answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"DataNode {address}: {reason}")
        self.host = address.rpartition(":")[0]


class WebHdfsClient:
    """One caller's connections; closed with `close`."""

    def __init__(self, where: WebHdfs, transport: httpx.BaseTransport | None = None) -> None:
        self._where = where
        self._addresses = list(where.addresses)
        # Inside the cluster: no proxy of the environment stands in between.
        self._http = httpx.Client(timeout=_NAMENODE_S, trust_env=False, transport=transport)

    def close(self) -> None:
        self._http.close()

    def check(self) -> None:
        """MillraceError when no NameNode answers as the active one."""
        self._until_done("/", lambda _, __: self._ask("GET", "/", op="GETFILESTATUS"))

    def create(self, path: str, source: Path) -> None:
        """Create a file with the bytes of a local one, folders included; it is closed and has their length.

        FileExistsError when it was there before.
        """
        size = source.stat().st_size

        def attempt(turn: int, without: Mapping[str, str]) -> None:
            again = "true" if turn else "false"
            url = self._data_url(
                "PUT", path, op="CREATE", overwrite=again, **self._where.new_files, **without
            )
            with open(source, "rb") as content:
                answer = self._data(url, "PUT", content=content)
            if answer.status_code != httpx.codes.CREATED:
                raise _refusal(answer, path)
            length = self._ask("GET", path, op="GETFILESTATUS")["FileStatus"]["length"]
            if length != size:
                raise _NotNow(f"{length} bytes arrived of {size}")

        self._until_done(path, attempt)

    def fetch(self, path: str, target: Path) -> None:
        """Write the bytes of a file into a local one; FileNotFoundError when it is not there."""

        def attempt(_: int, without: Mapping[str, str]) -> None:
            url = self._data_url("GET", path, op="OPEN", **without)
            with open(target, "wb") as content:
                answer = self._data(url, "GET", into=content.write)
            if answer.status_code != httpx.codes.OK:
                raise _refusal(answer, path)

        self._until_done(path, attempt)

    def _until_done(self, path: str, attempt: Callable[[int, Mapping[str, str]], T]) -> T:
        deadline, turn, without = time.monotonic() + self._where.patience_s, 0, dict[str, str]()
        while True:
            try:
                return attempt(turn, without)
            except _NotNow as error:
                if time.monotonic() > deadline:
                    raise MillraceError(
                        f"{path}: WebHDFS does not answer within {self._where.patience_s:.0f} s ({error}):"
                        " check the NameNode and the DataNodes, then run again, or take --sink spark"
                    ) from None
                # It may be believed alive for minutes, and the one nearest to us is chosen every time.
                without = {"excludedatanodes": error.host} if isinstance(error, _NoDataNode) else {}
            turn += 1
            time.sleep(PAUSE_S)

    def _data_url(self, method: str, path: str, **parameters: str) -> str:
        return str(self._ask(method, path, noredirect="true", **parameters)["Location"])

    def _ask(self, method: str, path: str, **parameters: str) -> Any:
        """What the active NameNode answers; the one that did is the first to be asked the next time."""
        refusals = []
        for address in list(self._addresses):
            url = f"http://{address}/webhdfs/v1{quote(path)}"
            try:
                answer = self._http.request(method, url, params={**parameters, "user.name": self._where.user})
                if answer.status_code == httpx.codes.OK:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    return answer.json()
                raise _refusal(answer, path)
            except (httpx.TransportError, _NotNow) as error:
                refusals.append(f"NameNode {address}: {error}")
        raise _NotNow("; ".join(refusals))

    def _data(
        self, url: str, method: str, into: Callable[[bytes], object] | None = None, **body: Any
    ) -> httpx.Response:
        """A DataNode's answer; the bytes of a good one go `into` the callable."""
        try:
            with self._http.stream(method, url, timeout=_DATANODE_S, **body) as answer:
                if into is None or answer.status_code != httpx.codes.OK:
                    answer.read()
                else:
                    for chunk in answer.iter_bytes(1 << 20):
                        into(chunk)
                return answer
        except httpx.TransportError as error:
            raise _NoDataNode(urlsplit(url).netloc, f"{type(error).__name__} {error}") from None


def _refusal(answer: httpx.Response, path: str) -> Exception:
    try:
        remote = answer.json()["RemoteException"]
        name, message = str(remote["javaClassName"]), str(remote["message"]).split("\n", 1)[0]
    except (ValueError, KeyError, TypeError):
        reason = f"{answer.request.url.netloc.decode()} answers {answer.status_code} {answer.reason_phrase}"
        if answer.is_server_error:
            return _NotNow(reason)
        return MillraceError(f"{path}: {reason} to a request of WebHDFS: take --sink spark")
    if name.endswith(".FileNotFoundException"):
        return FileNotFoundError(f"{path}: {message}")
    if name.endswith(".FileAlreadyExistsException"):
        return FileExistsError(f"{path}: {message}")
    explanation = explained(f"{name}: {message}", of_hadoop=True)
    if name in _PASSING or isinstance(explanation, HdfsNotReady):
        return _NotNow(str(explanation or message))
    return MillraceError(f"{path}: {explanation or f'{name}: {message}'}")
