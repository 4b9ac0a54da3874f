"""A packed virtual environment with this package and without Spark, as docs/clusters.md describes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY


def pack(folder: Path) -> Path:
    """Create the environment in a folder. Return the packed file."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"{REPOSITORY}[warehouse]", "venv-pack"]
    subprocess.run([*pip, "--constraint", str(REPOSITORY / "constraints.txt"), *wanted], check=True)
    packed = environment.with_suffix(".tar.gz")
    command = [str(environment / "bin" / "venv-pack"), "-q", "-p", str(environment), "-o", str(packed)]
    subprocess.run(command, check=True)
    return packed
