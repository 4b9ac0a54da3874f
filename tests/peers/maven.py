"""Jars of other projects, fetched once by Maven into the checkout's `.cache` folder.

A folder is named after its pom and the pom's contents: a changed version is fetched anew, what is there is
never touched again. Nothing is fetched twice at once, however many test runs ask.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support import REPOSITORY

CACHE = REPOSITORY / ".cache" / "peers"
TIMEOUT_S = 300
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class NoMaven(Exception):
    """Maven is not installed and the jars are not there from an earlier run."""


def available() -> bool:
    """True where `mvn` is on the path: what needs jars is left out elsewhere, even if a cache has them."""
    return shutil.which("mvn") is not None


def jars(pom: Path) -> Path:
    """The folder with every jar the pom names and needs; NoMaven, or AssertionError with Maven's words."""
    version = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{pom.name.split('.')[0]}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(pom, folder)
    return folder


def class_path(*poms: Path) -> str:
    """Every jar of the poms, as Java's `-cp` takes it."""
    return ":".join(str(jars(pom) / "*") for pom in poms)


def unpacked(pom: Path, *unwanted: str) -> Path:
    """The folder inside the pom's only archive, unpacked once, without what matches the unwanted patterns."""
    archives = jars(pom)
    target = archives.with_name(f"{archives.name}-unpacked")
    with open(CACHE / f"{archives.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=f"{archives.name}-", dir=CACHE) as unfinished:
                (archive,) = archives.glob("*.tar.gz")
                subprocess.run(["tar", "-xzf", archive, "-C", unfinished], timeout=TIMEOUT_S, check=True)
                (folder,) = Path(unfinished).iterdir()
                for path in {path for pattern in unwanted for path in folder.glob(pattern)}:
                    shutil.rmtree(path)
                folder.rename(target)
                archive.unlink()  # its folder stays, with the pom's jars
    return target


def _fetch(pom: Path, folder: Path) -> None:
    if not available():
        raise NoMaven(f"{pom.name} needs Maven: install it (Debian: apt-get install maven)")
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=CACHE) as unfinished:
        target = Path(unfinished) / "jars"
        command = ["mvn", "-q", "-B", "-ntp", "-f", str(pom), _COPY_DEPENDENCIES]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={target}", "-DincludeScope=runtime"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"Maven cannot fetch {pom}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        target.rename(folder)
