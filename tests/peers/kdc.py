"""A real Kerberos: MIT's KDC of the realm TEST, one process on 127.0.0.1, with Debian's packages.

Principals have random keys in keytabs; nobody has a password. Servers are named `localhost`: Kerberos
knows hosts, not addresses. `clock` shifts the KDC's own clock, by libfaketime.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.brokers import free_port
from tests.peers.one_process import OneProcess
from tests.support import start_for_the_test_run, wait_until

REALM = "TEST"
HOST = "localhost"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
INSTALL = "apt-get install krb5-kdc krb5-admin-server krb5-user libfaketime"
# Where Debian has them; a user's PATH often lacks sbin.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"

_KRB5_CONF = """[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = 1h
 kdc_timesync = {timesync}
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 {host} = {realm}
"""
# No UDP: the test run's claim on a port is the UDP port of the same number.
_KDC_CONF = """[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }}
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


def _faketime() -> Path:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class Kdc(OneProcess):
    """The KDC of a realm without principals. Ready when made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, free_port()
        self.krb5_conf = self.client_conf("krb5.conf")
        values = {"realm": REALM, "port": self.port, "folder": folder}
        (folder / "kdc.conf").write_text(_KDC_CONF.format(**values))
        self._env = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.start()

    def client_conf(self, name: str, *, timesync: bool = True) -> Path:
        """Write a krb5.conf for clients. Without `timesync` they trust their own clock, not the KDC's."""
        path = self.folder / name
        values = {"realm": REALM, "host": HOST, "port": self.port, "timesync": int(timesync)}
        path.write_text(_KRB5_CONF.format(**values))
        return path

    def start(self, *, clock: str = "") -> None:
        """Start the KDC, again after `kill`; `clock` is an offset of faketime, such as `+1h`."""
        # Not the program `faketime`, which stays as a parent and leaves the KDC behind when it is killed.
        shifted = {"LD_PRELOAD": str(_faketime()), "FAKETIME": clock} if clock else {}
        with open(self.folder / "log", "ab") as log:
            self._process = start_for_the_test_run(
                ["krb5kdc", "-n", "-r", REALM],
                env={**os.environ, **self._env, **shifted, "PATH": _PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until("the KDC listens", self._listens)

    def keytab(self, name: str, principals: Sequence[str], *, life: str = "1h") -> Path:
        """Return a keytab with principals; those that do not exist are created, with tickets for `life`."""
        path = self.folder / f"{name}.keytab"
        known = self._run("kadmin.local", "-r", REALM, "-q", "listprincs").split()
        for principal in principals:
            if f"{principal}@{REALM}" not in known:
                self._run(
                    "kadmin.local", "-r", REALM, "-q", f'addprinc -randkey -maxlife "{life}" {principal}'
                )
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} -norandkey {principal}")
        return path

    def change_key(self, principal: str) -> None:
        """Give a principal a new key, which no keytab has."""
        self._run("kadmin.local", "-r", REALM, "-q", f"cpw -randkey {principal}")

    def delete(self, principal: str) -> None:
        """Delete a principal, whose keytabs remain."""
        self._run("kadmin.local", "-r", REALM, "-q", f"delprinc -force {principal}")

    def ticket(self, keytab: Path, principal: str, cache: Path, *, life: str = "1h") -> None:
        """Get a ticket by a keytab into a ticket cache, as `kinit` does."""
        self._run("kinit", "-k", "-t", str(keytab), "-c", f"FILE:{cache}", "-l", life, principal)

    def _listens(self) -> bool:
        self._check_runs("the KDC")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env={**os.environ, **self._env, "PATH": _PATH},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout
