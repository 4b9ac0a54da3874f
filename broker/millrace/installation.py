"""The contents of this installation: the packages of its extras, and the files that come with Millrace.

It only has their names, and imports none of the packages.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from millrace import __version__
from millrace.errors import MillraceError

DISTRIBUTION = "millrace-pipeline"
"""Name of the package to install; `millrace`, the name to import, belongs to another project on PyPI."""

EXTRAS = {
    "numpy": "warehouse",
    "pyarrow": "warehouse",
    "pyiceberg": "warehouse",
    "obstore": "objects",
    "pyspark": "spark",
    "py4j": "spark",
    "airflow": "airflow",
    "psycopg": "postgres",
}
"""Package to import -> the extra that brings it."""


def require(*packages: str) -> None:
    """Raise MillraceError, with the command that installs them, when packages of extras are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise _missing(missing)


def missing_extra(error: ModuleNotFoundError) -> MillraceError:
    """Return the error with the command that installs the missing package.

    Raise `error` again if no extra brings the package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return _missing([package])


def _missing(packages: list[str]) -> MillraceError:
    extras = {EXTRAS[name] for name in packages}
    # The extra `spark` brings `warehouse`.
    how = how_to_install(*sorted(extras - {"warehouse"} if "spark" in extras else extras))
    are = "is" if len(packages) == 1 else "are"
    return MillraceError(f"{', '.join(packages)} {are} not installed: {how}")


def how_to_install(*extras: str) -> str:
    """Return the pip command that adds extras, from the source of this installation."""
    requirement = f"{DISTRIBUTION}[{','.join(extras)}]"
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")  # PEP 610
    except PackageNotFoundError:  # on PYTHONPATH only
        origin = {}
    if origin:
        vcs = origin.get("vcs_info")
        url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
        requirement = f"{requirement} @ {url}"
    return f"pip install '{requirement}'"


class Release(NamedTuple):
    """Version of an installation, and the commit that it was built from: "" in a checkout."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"{self.version} ({self.commit})" if self.commit else self.version

    def may_be(self, other: Release) -> bool:
        """Return False if it is another release; a checkout may have any commit of its version."""
        return self.version == other.version and (
            self.commit == other.commit or "" in (self.commit, other.commit)
        )


@cache
def release() -> Release:
    """Return the installed release."""
    built_from = Path(__file__).with_name("commit.txt")
    return Release(__version__, built_from.read_text().strip() if built_from.exists() else "")


def version() -> str:
    """Return the version, and the commit that was built or is checked out, if it is known."""
    installed, checkout = release(), Path(__file__).parents[2]
    if not installed.commit and (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        installed = installed._replace(commit=commit)
    return str(installed)


def shipped(name: str) -> Path:
    """Return the path of a file or folder that comes with Millrace: `schemas`, `dags` or `deploy/local.toml`.

    They are inside an installed package, or beside the source root of a checkout.
    """
    package = Path(__file__).parent
    installed = package / name
    return installed if installed.exists() else package.parent.parent / name
