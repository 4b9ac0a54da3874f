"""One setting of a topic, asked of an Apache Kafka cluster: DescribeConfigs v1, the client's side.

Millrace's own brokers do not answer it; nothing asks them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import BrokerError
from millrace.wire.client import ClusterClient
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import error_name

_DESCRIBE_CONFIGS = 32
_VERSION = 1
_TOPIC = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource:
    """What is asked about: `resource_type` 2 is a topic."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """Which settings have these resources?"""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    """One setting; `value` is None when it is secret."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult:
    """One resource's settings, or the error in their place."""

    error_code: int
    error_message: str | None
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """The answer, one result for each resource."""

    results: tuple[DescribeConfigsResult, ...]


def topic_setting(client: ClusterClient, topic: str, name: str) -> str | None:
    """The topic's setting as text, None when the cluster does not tell it; BrokerError when it refuses."""
    resource = DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=(name,)
    )  # fmt: skip
    body = encode(DescribeConfigsRequest(resources=(resource,)), _DESCRIBE_CONFIGS, _VERSION)
    raw = client.ask(None, _DESCRIBE_CONFIGS, _VERSION, body)
    for result in decode(DescribeConfigsResponse, _DESCRIBE_CONFIGS, _VERSION, raw).results:
        if result.error_code:
            reason = result.error_message or error_name(result.error_code)
            raise BrokerError(f"{client.bootstrap} does not tell the settings of topic {topic!r}: {reason}")
        for config in result.configs:
            if config.name == name:
                return config.value
    return None
