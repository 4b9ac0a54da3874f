"""Addresses of WebHDFS, the user and the settings of new files, from Hadoop's configuration. Uses no Java.

Reads core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR, or in $HADOOP_HOME/etc/hadoop. Without these files
the warehouse's address must name a NameNode, and Hadoop's default ports apply.
"""

from __future__ import annotations

import getpass
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from millrace.errors import ConfigError

PATIENCE_S = 120.0
"""Most seconds for retries of a request: a NameNode that restarts is ready again within them."""
_FILES = ("core-site.xml", "hdfs-site.xml")
_RPC_PORT = 8020
_WEB = "0.0.0.0:9870"
"""Hadoop's default web address: this port on the NameNode's own host."""
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("kmgtpe", 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfs:
    """Addresses and user of WebHDFS, which tasks receive."""

    addresses: tuple[str, ...]
    """`host:port` of the NameNodes, of which one is active."""
    user: str
    new_files: Mapping[str, str] = field(default_factory=dict)
    """Permission, replication and block size of new files, as parameters of CREATE."""
    patience_s: float = PATIENCE_S


def read_settings() -> dict[str, str]:
    """Read Hadoop's configuration, or return {} without one. Raise ConfigError when it cannot be read."""
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    settings = {}
    for path in (Path(folder, name) for name in _FILES if folder):
        try:
            properties = ElementTree.parse(path).getroot().iter("property")
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigError(f"{path}: {error}: correct it, or point HADOOP_CONF_DIR elsewhere") from None
        for each in properties:
            settings[each.findtext("name", "").strip()] = each.findtext("value", "").strip()
    return settings


def find_webhdfs(address: str, settings: Mapping[str, str]) -> tuple[str, WebHdfs]:
    """Return the address of a warehouse with the default authority filled in, and its WebHDFS.

    Raise ConfigError for an address without a NameNode, and where WebHDFS requires Kerberos or TLS.
    """
    authority, path = urlsplit(address).netloc, urlsplit(address).path
    authority = authority or urlsplit(settings.get("fs.defaultFS", "")).netloc
    if not authority:
        raise ConfigError(
            f"warehouse {address!r} names no NameNode: write hdfs://host:8020/path or hdfs://nameservice/path,"
            " or set fs.defaultFS in the core-site.xml of HADOOP_CONF_DIR"
        )
    for setting, value in (("hadoop.security.authentication", "simple"), ("dfs.http.policy", "HTTP_ONLY")):
        if (configured := settings.get(setting, value)) not in (value, "HTTP_AND_HTTPS"):
            raise ConfigError(
                f"warehouse {address!r}: {setting} is {configured}, and Millrace reaches HDFS by WebHDFS over"
                f" HTTP with simple authentication: keep the warehouse on local disks or in an object store"
            )
    where = WebHdfs(
        addresses=tuple(web_addresses(settings, authority)),
        user=os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
        new_files=_new_files(settings),
    )
    return f"hdfs://{authority}{path.rstrip('/')}", where


def web_addresses(settings: Mapping[str, str], authority: str) -> list[str]:
    """Return the WebHDFS addresses (`host:port`) of the NameNodes for `hdfs://<authority>`."""
    addresses = []
    for service in _listed(settings.get("dfs.nameservices")):
        for node in _listed(settings.get(f"dfs.ha.namenodes.{service}")) or [""]:
            name = f"{service}.{node}" if node else service
            rpc = settings.get(f"dfs.namenode.rpc-address.{name}", "")
            if rpc and (service == authority or _with_port(rpc) == _with_port(authority)):
                addresses.append(_on_host(settings.get(f"dfs.namenode.http-address.{name}", _WEB), rpc))
    return addresses or [_on_host(settings.get("dfs.namenode.http-address", _WEB), authority)]


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _with_port(address: str) -> str:
    return address if ":" in address else f"{address}:{_RPC_PORT}"


def _on_host(web: str, rpc: str) -> str:
    """Return a web address. If its host is 0.0.0.0 (every interface), use the RPC address's host."""
    host, _, port = web.rpartition(":")
    return f"{rpc.partition(':')[0]}:{port}" if host == "0.0.0.0" else web


def _new_files(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the configured parameters of CREATE. The NameNode decides the other parameters."""
    umask = settings.get("fs.permissions.umask-mode", "022")
    parameters = {"unmaskedpermission": "666"}
    if re.fullmatch("0?[0-7]{3}", umask):
        parameters["permission"] = f"{0o666 & ~int(umask, 8):o}"
    if replication := settings.get("dfs.replication"):
        parameters["replication"] = replication
    if size := re.fullmatch(r"(\d+)([kmgtpe]?)", settings.get("dfs.blocksize", "").lower()):
        parameters["blocksize"] = str(int(size[1]) * _UNITS.get(size[2], 1))
    return parameters
