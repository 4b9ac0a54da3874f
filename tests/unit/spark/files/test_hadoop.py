"""What is set in Hadoop's configuration before a warehouse on HDFS is opened."""

from __future__ import annotations

import pytest

from millrace_spark.files.hadoop import _keep_trying

ENABLED = "dfs.client.retry.policy.enabled"


class Configuration:
    """Hadoop's, as far as it is asked: where a key was set last, and what is set now."""

    def __init__(self, sources: list[str] | None) -> None:
        self._sources = sources
        self.changed: dict[str, str] = {}

    def getPropertySources(self, key: str) -> list[str] | None:  # Java's name
        return self._sources if key == ENABLED else None

    def set(self, key: str, value: str) -> None:
        self.changed[key] = value


@pytest.mark.parametrize(
    ("sources", "changed"),
    [
        (None, True),
        (["hdfs-default.xml"], True),  # a class path with Hadoop's server jars has one
        (["hdfs-site.xml"], False),
        (["hdfs-default.xml", "hdfs-site.xml"], False),
        (["programmatically"], False),
    ],
)
def test_retries_are_set_unless_somebody_has_set_them(sources: list[str] | None, changed: bool) -> None:
    configuration = Configuration(sources)
    _keep_trying(configuration)
    assert (configuration.changed.get(ENABLED) == "true") == changed
    assert "dfs.client.retry.policy.spec" in configuration.changed
