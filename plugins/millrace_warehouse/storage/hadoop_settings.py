"""Addresses of WebHDFS, user, TLS and settings of new files, from Hadoop's configuration. Uses no Java.

Reads core-site.xml, hdfs-site.xml and yarn-site.xml in HADOOP_CONF_DIR or $HADOOP_HOME/etc/hadoop, and in
YARN_CONF_DIR. Without these files the warehouse's address must name a NameNode, and Hadoop's default ports
apply.
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
_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
_REFERENCE = re.compile(r"\$\{([^}]+)\}")
_RPC_PORT = 8020
_WEB = {"http": "0.0.0.0:9870", "https": "0.0.0.0:9871"}
"""Hadoop's default web addresses: these ports on the NameNode's own host."""
CA_VARIABLE = "MILLRACE_HDFS_CA"
"""Variable with the PEM file of the authority of the servers' certificates; by default the system's count."""
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("kmgtpe", 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfs:
    """Addresses and user of WebHDFS, which tasks receive."""

    addresses: tuple[str, ...]
    """`host:port` of the NameNodes, of which one is active."""
    user: str
    new_files: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Permission, replication and block size of new files, as parameters of CREATE."""
    patience_s: float = PATIENCE_S
    scheme: str = "http"
    ca_file: str = ""
    """File that CA_VARIABLE names. Every worker has it under the same name."""
    kerberos: bool = False
    """True if hadoop.security.authentication is kerberos, in a driver. What the servers ask for decides."""
    token: str = field(default="", repr=False)
    """Delegation token that a driver hands to its tasks."""


def read_settings() -> dict[str, str]:
    """Read Hadoop's configuration, or return {} without one. Raise ConfigError when it cannot be read."""
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    folders = [folder, os.environ.get("YARN_CONF_DIR")]
    settings: dict[str, str] = {}
    for path in (Path(folder, name) for folder in folders if folder for name in _FILES):
        try:
            properties = ElementTree.parse(path).getroot().iter("property")
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigError(
                f"{path}: {error}: correct this file, or point HADOOP_CONF_DIR elsewhere"
            ) from None
        for each in properties:
            settings[each.findtext("name", "").strip()] = each.findtext("value", "").strip()
    return {
        key: _REFERENCE.sub(lambda name: settings.get(name[1], name[0]), value)
        for key, value in settings.items()
    }


def hadoop_user() -> str:
    """Return the user's name for servers that believe any name."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def find_webhdfs(address: str, settings: Mapping[str, str]) -> tuple[str, WebHdfs]:
    """Return the address of a warehouse with the default authority filled in, and its WebHDFS.

    Raise ConfigError for an address without a NameNode.
    """
    authority, path = urlsplit(address).netloc, urlsplit(address).path
    authority = authority or urlsplit(settings.get("fs.defaultFS", "")).netloc
    if not authority:
        raise ConfigError(
            f"warehouse {address!r} names no NameNode: write hdfs://host:8020/path or hdfs://nameservice/path,"
            " or set fs.defaultFS in the core-site.xml of HADOOP_CONF_DIR"
        )
    kerberos = settings.get("hadoop.security.authentication", "simple") == "kerberos"
    policy = settings.get("dfs.http.policy", "HTTP_ONLY")
    # A token is a secret: where both are served, it is sent encrypted.
    scheme = "https" if policy == "HTTPS_ONLY" or (kerberos and policy == "HTTP_AND_HTTPS") else "http"
    where = WebHdfs(
        addresses=tuple(web_addresses(settings, authority, scheme)),
        scheme=scheme,
        ca_file=os.environ.get(CA_VARIABLE, ""),
        kerberos=kerberos,
        user=hadoop_user(),
        new_files=_new_files(settings),
    )
    return f"hdfs://{authority}{path.rstrip('/')}", where


def web_addresses(settings: Mapping[str, str], authority: str, scheme: str = "http") -> list[str]:
    """Return the WebHDFS addresses (`host:port`) of the NameNodes for `hdfs://<authority>`."""
    addresses, prefix = [], f"dfs.namenode.{scheme}-address"
    for service in listed(settings, "dfs.nameservices"):
        for node in listed(settings, f"dfs.ha.namenodes.{service}") or [""]:
            name = f"{service}.{node}" if node else service
            rpc = settings.get(f"dfs.namenode.rpc-address.{name}", "")
            if rpc and (service == authority or with_port(rpc) == with_port(authority)):
                addresses.append(_on_host(settings.get(f"{prefix}.{name}", _WEB[scheme]), rpc))
    return addresses or [_on_host(settings.get(prefix, _WEB[scheme]), authority)]


def listed(settings: Mapping[str, str], key: str) -> list[str]:
    return [name.strip() for name in settings.get(key, "").split(",") if name.strip()]


def with_port(address: str) -> str:
    """Return `host:port` of a NameNode's RPC."""
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
