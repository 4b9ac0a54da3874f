"""Apache Kafka for the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker of Apache Kafka that the whole run shares; take topic names of your own."""
    compact_at_once = {"log.cleaner.backoff.ms": "200"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=compact_at_once) as broker:
        yield broker
