"""Hadoop with Kerberos: settings, keytab, keystore and authority of every server on `localhost`.

Functions return settings, for site files of any server or client (`tests.peers.hdfs.site_xml`).
"""

from __future__ import annotations

import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace_warehouse.storage.gss import negotiate
from tests.peers.kdc import HOST, REALM, Kdc

SUPERUSER = "hdfs"
_PASSWORD = "changeit"


@dataclass(frozen=True)
class Security:
    """KDC, realm and certificate that secured servers share."""

    kdc: Kdc
    folder: Path
    keytab: Path
    """Keytab of every server: `hdfs`, `yarn` and HTTP on `localhost`."""
    ca: Path
    """The servers' certificate, by which clients check it."""

    @classmethod
    def make(cls, kdc: Kdc, folder: Path) -> Security:
        """Make principals, certificate and secret of servers."""
        folder.mkdir(parents=True, exist_ok=True)
        servers = [f"{name}/{HOST}" for name in (SUPERUSER, "HTTP", "yarn")]
        made = cls(kdc, folder, kdc.keytab("servers", servers), folder / "ca.pem")
        (folder / "http.secret").write_text("x" * 40)
        name = ["-dname", f"CN={HOST}", "-ext", f"SAN=dns:{HOST},ip:127.0.0.1"]
        made._keytool("server.p12", "-genkeypair", "-keyalg", "EC", "-validity", "30", *name)
        made._keytool("server.p12", "-exportcert", "-rfc", "-file", str(made.ca))
        made._keytool("trust.p12", "-importcert", "-noprompt", "-file", str(made.ca))
        return made

    def _keytool(self, store: str, *arguments: str) -> None:
        where = ["-storetype", "PKCS12", "-keystore", str(self.folder / store), "-storepass", _PASSWORD]
        subprocess.run(["keytool", *arguments, "-alias", "s", *where], check=True, capture_output=True)

    @property
    def java(self) -> str:
        """Option with which a JVM finds the KDC: Java does not read KRB5_CONFIG."""
        return f"-Djava.security.krb5.conf={self.kdc.krb5_conf}"

    def core(self) -> dict[str, str]:
        """Settings of core-site.xml, for servers and clients."""
        return {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "hadoop.security.token.service.use_ip": "false",
            "hadoop.rpc.protection": "privacy",
            "hadoop.http.authentication.signature.secret.file": str(self.folder / "http.secret"),
            "hadoop.http.authentication.simple.anonymous.allowed": "false",
            # Without these WebHDFS takes ?user.name without a ticket, whatever the RPC side asks for.
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": f"HTTP/{HOST}@{REALM}",
            "hadoop.http.authentication.kerberos.keytab": str(self.keytab),
        }

    def hdfs(self) -> dict[str, str]:
        """Settings of hdfs-site.xml, for servers and clients."""
        return {
            "dfs.http.policy": "HTTPS_ONLY",
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "privacy",
            "dfs.permissions.superusergroup": SUPERUSER,
            "dfs.web.authentication.kerberos.principal": f"HTTP/{HOST}@{REALM}",
            "dfs.web.authentication.kerberos.keytab": str(self.keytab),
            **{
                f"dfs.{kind}.{key}": value
                for kind in ("namenode", "datanode")
                for key, value in (
                    ("kerberos.principal", f"{SUPERUSER}/{HOST}@{REALM}"),
                    ("keytab.file", str(self.keytab)),
                )
            },
        }

    def yarn(self) -> dict[str, str]:
        """Settings of yarn-site.xml, for servers and clients."""
        login = {"principal": f"yarn/{HOST}@{REALM}", "keytab": str(self.keytab)}
        spnego = {"principal": f"HTTP/{HOST}@{REALM}", "keytab-file": str(self.keytab)}
        return {
            "yarn.http.policy": "HTTPS_ONLY",
            # Without it every client of the web address is the user dr.who, who may not end an application.
            "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
            "yarn.acl.enable": "true",
            "yarn.admin.acl": "yarn",
            **{
                f"yarn.{server}.{key}": value
                for server in ("resourcemanager", "nodemanager")
                for key, value in (
                    *login.items(),
                    *((f"webapp.spnego-{key}", value) for key, value in spnego.items()),
                )
            },
        }

    def ssl_files(self) -> dict[str, Mapping[str, str]]:
        """Name of a site file -> its settings, for servers."""
        stores = {"keystore": "server.p12", "truststore": "trust.p12"}
        settings: dict[str, dict[str, str]] = {"server": {}, "client": {}}
        for side, store in (("server", "keystore"), ("server", "truststore"), ("client", "truststore")):
            prefix = f"ssl.{side}.{store}"
            settings[side] |= {
                f"{prefix}.location": str(self.folder / stores[store]),
                f"{prefix}.password": _PASSWORD,
                f"{prefix}.type": "PKCS12",
            }
        settings["server"]["ssl.server.keystore.keypassword"] = _PASSWORD
        return {f"ssl-{side}.xml": values for side, values in settings.items()}

    def open(self, url: str) -> bytes:
        """Return a page of a server, asked for with a ticket of this process."""
        headers = {"Authorization": f"Negotiate {negotiate(HOST)}", "Accept": "application/json"}
        request = urllib.request.Request(url, headers=headers)
        trusted = ssl.create_default_context(cafile=self.ca)
        with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
            content: bytes = answer.read()
            return content
