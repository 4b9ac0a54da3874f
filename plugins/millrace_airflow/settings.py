"""Addresses and credentials of all services, as one value read from an Airflow connection.

Defines the fields of connection type `millrace`. Neither looks connections up nor reaches any service.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.config import ClientSecurity, from_mapping, parse_addresses
from millrace.errors import ConfigError
from millrace.urls import address_and_auth, with_password

if TYPE_CHECKING:
    from airflow.sdk import Connection

CLIENT_FILE, PASSWORD_FILE = "client.toml", "client.password"
JOBS = "millrace-jobs"
"""The folder of jobs in Airflow's home, for a connection without `job_dir`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MillraceSettings:
    """One aggregate cluster, its services, its warehouse, and the clusters that it mirrors."""

    bootstrap: str
    """HOST:PORT[,HOST:PORT...] of the aggregate cluster's brokers: the connection's host."""
    registry: str = field(repr=False)
    """URL of the schema registry."""
    auditor: str = field(repr=False)
    """URL of the auditor."""
    warehouse: str
    """Path or URI of the folder that holds the tables."""
    subjects: str = ""
    """Naming of the registry's subjects: values of `--subject`, separated by spaces."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Bootstrap addresses of the datacenters' clusters, by cluster name."""
    spark_master: str = ""
    """Spark master to which jobs are submitted; empty for the commands' own default."""
    spark_ui: str = ""
    """URL of the web pages of the Spark cluster or of its history server."""
    catalog: str = ""
    """Iceberg catalog by its name in pyiceberg's configuration; empty for a local warehouse's own."""
    protocol: str = ""
    """The brokers' protocol, if it is not PLAINTEXT; see `millrace.config.ClientSecurity`."""
    ca: str = ""
    """PEM file on the workers with the authorities of the brokers' certificates; empty for the machine's
    authorities.
    """
    mechanism: str = ""
    user: str = ""
    """User at the brokers: the connection's login."""
    password: str = field(default="", repr=False)
    client_file: str = ""
    """Client file on the workers, in place of these settings; also on Spark's executors."""
    job_dir: str = ""
    """Folder for the logs and results of running jobs. Workers and triggerers must share it."""

    def origin(self, name: str) -> str:
        """Return the bootstrap address of an origin cluster.

        Raise ConfigError, listing the known clusters, for another name.
        """
        if name not in self.origins:
            names = ", ".join(sorted(self.origins)) or "none"
            raise ConfigError(f"the connection has no origin {name!r} (known: {names}): add it to `origins`")
        return self.origins[name]

    def client_files(self) -> dict[str, str]:
        """Return a client file and its password file by name; {} if the connection has none."""
        if not self.protocol:
            return {}
        named = {"protocol": self.protocol, "ca": self.ca, "mechanism": self.mechanism, "user": self.user}
        if self.user:
            named["password_file"] = PASSWORD_FILE
        text = "".join(
            f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in named.items() if value
        ).replace("\x7f", "\\u007f")  # the only character that TOML forbids in text and JSON allows
        return {CLIENT_FILE: text, PASSWORD_FILE: f"{self.password}\n"}

    @property
    def job_directory(self) -> Path:
        """`job_dir`, or the folder JOBS in Airflow's home."""
        home = os.environ.get("AIRFLOW_HOME", "~/airflow")
        return Path(self.job_dir or Path(home, JOBS)).expanduser()


def settings_of(connection: Connection) -> MillraceSettings:
    """Return the settings in a connection's fields.

    Raise ConfigError, naming the connection and the wrong field.
    """
    where, host, port = f"connection {connection.conn_id}", connection.host, connection.port
    if not host:
        raise ConfigError(f"{where} has no host: set it to HOST:PORT of the aggregate cluster's brokers")
    if not isinstance(extra := connection.extra_dejson, Mapping):
        raise ConfigError(f"{where}: its extra is not a JSON object with the fields of a Millrace connection")
    values = {key: value for key, value in extra.items() if value not in (None, "")}
    # Airflow separates the port of a single address from its host; a list of addresses stays in the host.
    if port:
        host = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    values["bootstrap"] = host
    values |= {"user": connection.login or "", "password": connection.password or ""}
    for service in ("registry", "auditor"):
        # Airflow hides a field of this name wherever it shows connections, but no password in a URL.
        if token := values.pop(f"{service}_token", ""):
            values[service] = _with_token(values.get(service, ""), str(token), f"{where}: {service}")
    if isinstance(origins := values.get("origins"), str):  # a form field and a URI carry text only
        try:
            values["origins"] = json.loads(origins)
        except ValueError:
            raise ConfigError(
                f'{where}: origins is not JSON of the form {{"dc1": "HOST:PORT"}}: {origins!r}'
            ) from None
    settings = from_mapping(MillraceSettings, values, where)
    parse_addresses(settings.bootstrap, f"{where}: host")
    for service, url in (("registry", settings.registry), ("auditor", settings.auditor)):
        try:
            address_and_auth(url)
        except ConfigError as error:
            raise ConfigError(f"{where}: {service} {error}") from None
    if settings.client_file and (settings.protocol or settings.user):
        raise ConfigError(f"{where}: give protocol and login, or client_file, which has both")
    if settings.user and not settings.protocol:
        raise ConfigError(f"{where} has a login and no protocol: set it to SASL_SSL")
    from_mapping(ClientSecurity, tomllib.loads(settings.client_files().get(CLIENT_FILE, "")), where)
    for name, address in settings.origins.items():
        parse_addresses(address, f"{where}: origin {name}")
    return settings


def _with_token(url: str, token: str, what: str) -> str:
    try:
        return with_password(url, token)
    except ConfigError as error:
        raise ConfigError(f"{what} {error}") from None
