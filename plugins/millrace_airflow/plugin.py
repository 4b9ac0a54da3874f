"""The Airflow plugin: checks the installation when an Airflow process starts.

Its failure is an import error in Airflow's list of plugins, long before the first task would fail.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from millrace_airflow.installation import check_installation


class MillracePlugin(AirflowPlugin):
    """Named once: Airflow loads only one plugin of a name."""

    name = "millrace"

    @classmethod
    def on_load(cls, *args: object, **kwargs: object) -> None:
        check_installation()
