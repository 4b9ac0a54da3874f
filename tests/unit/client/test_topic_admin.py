"""Settings of a topic as an Apache Kafka cluster describes them, in its own bytes."""

from __future__ import annotations

import struct

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.client.topic_admin import topic_setting
from millrace.errors import BrokerError


def string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def answer(error: int, settings: dict[str, str | None]) -> bytes:
    """DescribeConfigs v1, as a broker lays it out."""
    body = (
        struct.pack(">iih", 0, 1, error) + string("refused" if error else None) + b"\x02" + string("clicks")
    )
    body += struct.pack(">i", len(settings))
    for name, value in settings.items():
        body += string(name) + string(value) + b"\0\x05\0" + struct.pack(">i", 0)
    return body


class OneAnswer(ClusterClient):
    """A client whose every question gets the same answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__("kafka:9092")
        self.body, self.asked = body, b""
        self._copies_are_known = True

    def ask(self, broker_id: int | None, api_key: int, version: int, body: bytes) -> memoryview:
        assert (broker_id, api_key, version) == (None, 32, 1)
        self.asked = body
        return memoryview(self.body)


def test_a_setting_is_asked_for_by_topic_and_name() -> None:
    client = OneAnswer(answer(0, {"other": "x", "cleanup.policy": "compact,delete"}))
    assert topic_setting(client, "clicks", "cleanup.policy") == "compact,delete"
    expected = struct.pack(">i", 1) + b"\x02" + string("clicks") + struct.pack(">i", 1)
    assert client.asked == expected + string("cleanup.policy") + b"\0"


def test_a_setting_that_is_not_told_is_none_and_a_refusal_is_an_error() -> None:
    assert topic_setting(OneAnswer(answer(0, {})), "clicks", "cleanup.policy") is None
    with pytest.raises(BrokerError, match="settings of topic 'clicks': refused"):
        topic_setting(OneAnswer(answer(29, {})), "clicks", "cleanup.policy")
