"""Checks once, before any work, that the installed packages can work together.

Looks at the names of distributions only, and imports none of them.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version


class InstallationError(RuntimeError):
    """The installed packages cannot work together. No MillraceError, because millrace may be missing."""


def check_installation() -> None:
    """Raise InstallationError, one line with advice, if jobs cannot run here."""
    if importlib.util.find_spec("millrace") is None:
        raise InstallationError(
            "the plugins folder alone is not enough: package millrace is missing; put broker/ of the same"
            " checkout on PYTHONPATH, or install millrace-pipeline"
        )
    # Both packages write the folder site-packages/pyspark: chance decides whose files are there, and
    # uninstalling either one leaves gaps in the other.
    spark, client = _version("pyspark"), _version("pyspark-client")
    if spark and client:
        raise InstallationError(
            f"pyspark {spark} and pyspark-client {client} overwrite each other's files: pip uninstall"
            " pyspark-client apache-airflow-providers-apache-spark, then pip install --force-reinstall"
            f" pyspark=={spark}"
        )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
