"""An operator who types the blocks of docs/deployment.md as they are printed.

The machine of the page is a mount namespace, for root only: its folders are those of a place, and `systemctl`
stops and starts the place's processes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from millrace.installation import shipped
from millrace.process import start_child
from millrace_audit.reports.messages import OFFLINE
from tests.support import REPOSITORY
from tests.trials.docs.__main__ import blocks_of
from tests.trials.faultaudit.place import WAREHOUSE_READER, Place
from tests.trials.faultaudit.row import HOME
from tests.trials.faultrestore.scene import TOPIC

_PAGE = "docs/deployment.md"
_BACK_UP = "## Back up and restore"
_SYSTEMCTL = """#!/bin/sh
echo "$@" > {requests}/$$.new
mv {requests}/$$.new {requests}/$$
until [ -e {requests}/$$.done ]; do sleep 0.1; done
"""
TYPED_S = 300.0
"""A block may take so long; only to end one that hangs."""


class Operator:
    """An operator of a place, on one machine of its datacenter and on offline-4 in one."""

    def __init__(self, place: Place) -> None:
        self._place, self._folder = place, place.folder / "operator"
        self._units: Mapping[str, Sequence[str]] = {
            "zookeeper": [f"{HOME}-zookeeper"],
            "millrace-broker": place.brokers_of(HOME),
            "millrace-auditor": ["auditor"],
            "millrace-registry": ["registry"],
            "millrace-audit-warehouse": [WAREHOUSE_READER],
        }
        self._folders: Mapping[str, Path] = {
            "/srv/backup": self._folder / "backup",
            "/var/lib/zookeeper": place.folder / f"{HOME}-zookeeper",
            "/var/lib/millrace/auditor": place.folder,
            "/var/lib/millrace/registry": place.folder,
            "/opt/millrace/bin": Path(sys.executable).parent,
        }
        self._words: Mapping[str, str] = {
            "TOPIC": TOPIC,
            "/srv/warehouse": str(place.warehouse),  # the catalog holds its path, which others read, too
            "DATE": datetime.now(UTC).strftime("%F"),
            "10.9.0.1:9092": place.clusters[OFFLINE].bootstrap,
        }
        self._variables = {"MILLRACE_AUDITOR": place.auditor_url, "MILLRACE_REGISTRY": place.registry}
        for folder in ("requests", "bin", "backup"):
            (self._folder / folder).mkdir(parents=True)
        systemctl = self._folder / "bin" / "systemctl"
        systemctl.write_text(_SYSTEMCTL.format(requests=self._folder / "requests"))
        systemctl.chmod(0o755)

    def backs_up(self) -> Path:
        """Type the block that makes a backup; the backup's folder."""
        self._type(next(_blocks_behind(_BACK_UP)))
        return self._folders["/srv/backup"] / self._words["DATE"]

    def restores(self, what: str) -> None:
        """Type every block of the paragraph `**Restore WHAT`, up to the next one."""
        for block in _blocks_behind(f"**Restore {what}"):
            self._type(block)

    def _type(self, block: str) -> None:
        for printed, here in self._words.items():
            block = block.replace(printed, here)
        mounts = [f"mount -t tmpfs tmpfs {top}" for top in ("/srv", "/var/lib", "/opt")]
        for path, folder in self._folders.items():
            mounts += [f"mkdir -p {path}", f"mount --bind {shlex.quote(str(folder))} {path}"]
        script = "\n".join(["set -eu", *mounts, f"deploy={shlex.quote(str(shipped('deploy')))}", block])
        path = f"{self._folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        typed = start_child(
            ["unshare", "--mount", "sh", "-c", script],
            cwd=REPOSITORY,
            env={**os.environ, **self._variables, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + TYPED_S
        while typed.poll() is None:
            assert time.monotonic() < deadline, f"this block of {_PAGE} does not end:\n{block}"
            for request in self._requests():
                self._systemctl(*request.read_text().split())
                request.with_suffix(".done").touch()
            time.sleep(0.05)
        printed, _ = typed.communicate()
        assert typed.returncode == 0, (
            f"this block of {_PAGE} ended with {typed.returncode}:\n{block}\n{printed}"
        )

    def _requests(self) -> list[Path]:
        found = (self._folder / "requests").iterdir()
        return [path for path in found if not path.suffix and not path.with_suffix(".done").exists()]

    def _systemctl(self, verb: str, *units: str) -> None:
        names = [name for unit in units for name in self._units[unit]]
        if verb == "stop":
            self._place.stop(*names)
        else:
            self._place.restart(*names)


def _blocks_behind(words: str) -> Iterator[str]:
    """Texts of the blocks of a part of the page; the next part begins in bold or with `##`."""
    _, found, part = (REPOSITORY / _PAGE).read_text().partition(words)
    assert found, f"{_PAGE} has no {words!r}"
    ends = [end for mark in ("\n**", "\n## ") if (end := part.find(mark)) >= 0]
    blocks = [block.text for block in blocks_of(part[: min(ends)])]
    assert blocks, f"{_PAGE} has no block behind {words!r}"
    yield from blocks
