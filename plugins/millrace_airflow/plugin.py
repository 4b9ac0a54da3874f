"""The Airflow plugin: checks the installation when an Airflow process starts, and adds the audit's page.

A failed check is an import error in Airflow's list of plugins, long before the first task would fail.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from millrace_airflow.installation import check_installation

logger = logging.getLogger(__name__)


class _Apps:
    """The pages, created when the API server asks: workers load the plugin, too, without FastAPI."""

    def __get__(self, plugin: object, kind: type) -> list[dict[str, Any]]:
        try:
            from millrace_airflow.console import create_app

            return [{"app": create_app(), "url_prefix": "/millrace", "name": "millrace"}]
        except ImportError:  # an Airflow with other page protection: better no page than an open one
            logger.exception("the audit's page is not served: this Airflow has other names for its login")
            return []


class MillracePlugin(AirflowPlugin):
    """Airflow's plugin. Airflow loads only one plugin of each name."""

    name = "millrace"
    fastapi_apps: Any = _Apps()
    external_views = [  # noqa: RUF012  # Airflow's own annotation
        {
            "name": "Audit",
            "href": "millrace/millrace_default/console",
            "destination": "nav",
            "category": "browse",
            "url_route": "millrace-audit",
        }
    ]

    @classmethod
    def on_load(cls, *args: object, **kwargs: object) -> None:
        check_installation()
