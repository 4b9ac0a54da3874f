"""Lets this folder serve as Airflow's plugins folder without installing the package.

Does nothing when the package is installed: Airflow's workers drop every plugin after a duplicate name.
"""

from importlib.metadata import entry_points

if "millrace" not in entry_points(group="airflow.plugins").names:
    from millrace_airflow.plugin import MillracePlugin  # noqa: F401  # Airflow looks for it in this module
