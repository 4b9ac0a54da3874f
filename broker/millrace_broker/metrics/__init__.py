"""A broker's numbers and health, for `/metrics` and `/healthz`.

The parts of the broker count in plain integers. The thread of a scrape reads them, so that the loop is not
disturbed. This package has the metrics' names and units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.security.certificates import ServerCertificates
from millrace.service.access import AccessList
from millrace.service.monitoring import MonitoringServer
from millrace_broker.metrics import health
from millrace_broker.metrics.numbers import Numbers

__all__ = ["MetricsServer"]


class MetricsServer:
    """Serves in threads of its own from `start` to `close`."""

    def __init__(
        self,
        listen: str,
        numbers: Numbers,
        access: AccessList | None = None,
        certificates: ServerCertificates | None = None,
    ) -> None:
        self._offsets, self._broker = numbers.offsets, numbers.broker
        self._server = MonitoringServer(listen, "metrics_listen", numbers, self._health, access, certificates)
        self.url = self._server.url

    def start(self) -> None:
        self._offsets.start()
        self._server.start()

    def close(self) -> None:
        self._offsets.stop()
        self._server.close()

    def _health(self) -> tuple[bool, Mapping[str, Any]]:
        problems = health.problems(self._broker)
        return not problems, {"problems": problems}
