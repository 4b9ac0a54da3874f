"""Topics whose newest messages carry a schema id, found in the background: no request waits for a broker."""

from __future__ import annotations

import logging
import threading

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError

logger = logging.getLogger("millrace.registry")
_LOOK_AGAIN_S = 60.0
_TIMEOUT_S = 10.0
_MOST_TOPICS = 20
"""Most topics that are listed for one id; further topics are only counted."""


class Usage:
    """Topics by the schema ids at the end of their partitions, at most about a minute old."""

    def __init__(self, bootstrap: str | None) -> None:
        self._bootstrap = bootstrap
        self._topics: dict[int, list[str]] | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Read the topics now and every minute, until `close`."""
        if self._bootstrap is not None:
            threading.Thread(target=self._run, name="usage", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def topics_of(self, schema_id: int) -> str:
        """Return the topics that use a schema, as text for the page."""
        if self._bootstrap is None:
            return "not known: start the registry with --bootstrap"
        if self._topics is None:
            return f"not known: no answer from {self._bootstrap} yet"
        topics = self._topics.get(schema_id, [])
        more = f" and {len(topics) - _MOST_TOPICS} more" if len(topics) > _MOST_TOPICS else ""
        return ", ".join(topics[:_MOST_TOPICS]) + more or "none"

    def look(self) -> None:
        """Read the topics once. Raise MillraceError when the brokers do not answer."""
        from millrace_registry.retained import ids_in  # imports numpy, not needed without brokers

        assert self._bootstrap is not None
        topics: dict[int, list[str]] = {}
        with ClusterClient(self._bootstrap, timeout_s=_TIMEOUT_S) as client:
            for topic in sorted(client.topics()):
                try:
                    ids = ids_in(client, topic, tail_only=True)
                except MillraceError as error:
                    logger.warning("the schemas that topic %s uses are not known: %s", topic, error)
                    continue
                for schema_id in ids:
                    topics.setdefault(schema_id, []).append(topic)
        self._topics = topics

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except MillraceError as error:
                logger.warning("the topics that use each schema are not known: %s", error)
                self._topics = None
            if self._stop.wait(_LOOK_AGAIN_S):
                return
