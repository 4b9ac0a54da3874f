"""DescribeConfigs, v1 to v3: the settings of topics and of this broker.

A broker answers for itself alone: clients send the question to the broker it is about. The cluster-wide
broker settings that Kafka has are an empty list. Left out: settings of loggers and clients, and v0, which
tells no sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.broker.broker import Broker
from millrace.broker.settings import Setting, broker_settings, topic_settings
from millrace.errors import InvalidRequest, UnknownTopicOrPartition
from millrace.handlers.outcome import outcome_of
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.admin_messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ResourceType,
)
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey


def handle(broker: Broker, request: Request) -> None:
    """Answer from the cluster's snapshot and the broker's own configuration; in a thread, it may be long."""
    asked = decode(DescribeConfigsRequest, ApiKey.DESCRIBE_CONFIGS, request.api_version, request.body)
    # Once each, so that a small request cannot ask for an answer of any size.
    resources = {(each.resource_type, each.resource_name): each for each in asked.resources}

    def work() -> bytes:
        results = tuple(_result(broker, resource, asked) for resource in resources.values())
        response = DescribeConfigsResponse(results=results)
        return encode(response, ApiKey.DESCRIBE_CONFIGS, request.api_version)

    answer_from_thread(broker.in_zookeeper_thread, request, work)


def _result(
    broker: Broker, resource: DescribeConfigsResource, asked: DescribeConfigsRequest
) -> DescribeConfigsResult:
    found: list[DescribeConfigsResourceResult] = []

    def look() -> None:
        keys = resource.configuration_keys
        found.extend(
            _describe(setting, asked)
            for setting in _settings(broker, resource)
            if keys is None or setting.name in keys
        )

    code, reason = outcome_of(look, f"describing {resource.resource_name}")
    return DescribeConfigsResult(
        error_code=code, error_message=reason, resource_type=resource.resource_type,
        resource_name=resource.resource_name, configs=() if code else tuple(found),
    )  # fmt: skip


def _settings(broker: Broker, resource: DescribeConfigsResource) -> Iterator[Setting]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        topic = broker.cluster.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"no topic {name} in cluster {broker.config.cluster}")
        return topic_settings(broker.config.log, topic)
    if resource.resource_type != ResourceType.BROKER:
        raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
    if not name:
        return iter(())
    if name != str(broker.config.broker_id):
        raise InvalidRequest(f"this is broker {broker.config.broker_id}: ask broker {name} itself")
    return broker_settings(broker.config)


def _describe(setting: Setting, asked: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    places = setting.places if asked.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        config_source=setting.source,
        synonyms=tuple(DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in places),
        config_type=setting.type,
        documentation=setting.documentation if asked.include_documentation else None,
    )


DESCRIBE_CONFIGS = Api(
    key=ApiKey.DESCRIBE_CONFIGS, versions=frozenset(range(1, 4)), advertised=(1, 3), handle=handle
)
