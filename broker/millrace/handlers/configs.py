"""DescribeConfigs v1 to v3, AlterConfigs v0 and v1, IncrementalAlterConfigs v0: settings of topics, brokers.

A broker describes itself alone: clients send the question to the broker it is about. Any broker changes a
topic's settings, and the open partitions of each follow; a broker's own are in its file and are refused. The
cluster-wide broker settings that Kafka has are an empty list. Left out: settings of loggers and clients,
DescribeConfigs v0, which tells no sources, and changes of lists, because no setting of a topic is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import alter_topic
from millrace.broker.topic_settings import (
    FIXED,
    SETTINGS,
    InvalidTopicConfig,
    describe_broker,
    describe_topic,
)
from millrace.errors import InvalidRequest, UnknownTopicOrPartition
from millrace.handlers.table import Call, message_api, outcome_of
from millrace.wire import admin_messages as messages
from millrace.wire.fields import replace
from millrace.wire.messages import ApiKey

Settings: TypeAlias = Mapping[str, str]
Change: TypeAlias = Callable[[Settings, Sequence[messages.AlterableConfig]], Settings]
"""Makes new settings of a topic of those that it has and what is asked for."""


def describe_configs(call: Call[messages.DescribeConfigsRequest]) -> messages.DescribeConfigsResponse:
    """Answer from the cluster's snapshot and the broker's own configuration."""
    # Once each, so that a small request cannot ask for an answer of any size.
    resources = {(each.resource_type, each.resource_name): each for each in call.request.resources}
    return messages.DescribeConfigsResponse(
        results=tuple(_describe_resource(call, resource) for resource in resources.values())
    )


def _describe_resource(
    call: Call[messages.DescribeConfigsRequest], resource: messages.DescribeConfigsResource
) -> messages.DescribeConfigsResult:
    keys = resource.configuration_keys
    code, reason, settings = outcome_of(
        lambda: [each for each in _settings(call.broker, resource) if keys is None or each.name in keys],
        f"describing {resource.resource_name}",
    )
    return messages.DescribeConfigsResult(
        error_code=code,
        error_message=reason,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_as_asked(setting, call.request) for setting in settings or ()),
    )


def _settings(
    broker: Broker, resource: messages.DescribeConfigsResource
) -> Iterator[messages.DescribeConfigsResourceResult]:
    name = resource.resource_name
    if resource.resource_type == messages.ResourceType.TOPIC:
        topic = broker.cluster.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"no topic {name} in cluster {broker.config.cluster}")
        return describe_topic(broker.config.log, topic)
    if resource.resource_type != messages.ResourceType.BROKER:
        raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
    if not name:
        return iter(())
    if name != str(broker.config.broker_id):
        raise InvalidRequest(f"this is broker {broker.config.broker_id}: ask broker {name} itself")
    return describe_broker(broker.config)


def _as_asked(
    setting: messages.DescribeConfigsResourceResult, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResourceResult:
    return replace(
        setting,
        synonyms=setting.synonyms if request.include_synonyms else (),
        documentation=setting.documentation if request.include_documentation else None,
    )


def alter_configs(
    change: Change, call: Call[messages.AlterConfigsRequest] | Call[messages.IncrementalAlterConfigsRequest]
) -> messages.AlterConfigsResponse:
    """Give each topic what `change` makes of its settings; each resource is answered for itself."""
    request = call.request
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}

    def alter(resource: messages.AlterConfigsResource) -> None:
        name, names = resource.resource_name, [config.name for config in resource.configs]
        if times[resource.resource_type, name] > 1:
            raise InvalidRequest(f"{name} is named more than once")
        if resource.resource_type == messages.ResourceType.BROKER:
            raise InvalidRequest("a broker's settings are in its configuration file: change that, restart it")
        if resource.resource_type != messages.ResourceType.TOPIC:
            raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        if len(set(names)) < len(names):
            raise InvalidRequest("a setting is named more than once")
        alter_topic(
            call.broker,
            name,
            lambda settings: change(settings, resource.configs),
            validate_only=request.validate_only,
        )

    def result(resource: messages.AlterConfigsResource) -> messages.AlterConfigsResourceResponse:
        code, reason, _ = outcome_of(partial(alter, resource), f"altering {resource.resource_name}")
        return messages.AlterConfigsResourceResponse(
            error_code=code,
            error_message=reason,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return messages.AlterConfigsResponse(responses=tuple(map(result, resources.values())))


def _replaced(_: Settings, configs: Sequence[messages.AlterableConfig]) -> Settings:
    return {config.name: _value(config) for config in configs}


def _changed(settings: Settings, configs: Sequence[messages.AlterableConfig]) -> Settings:
    """The settings with some set and some deleted; what is deleted is again as the broker's file says."""
    changed = dict(settings)
    for config in configs:
        if config.config_operation == messages.ConfigOperation.SET:
            changed[config.name] = _value(config)
        elif config.config_operation == messages.ConfigOperation.DELETE:
            if config.name not in changed and config.name not in SETTINGS and config.name not in FIXED:
                raise InvalidTopicConfig(f"unknown topic setting {config.name!r}")
            changed.pop(config.name, None)
        elif config.config_operation in (messages.ConfigOperation.APPEND, messages.ConfigOperation.SUBTRACT):
            raise InvalidTopicConfig(f"{config.name} is no list: set it or delete it")
        else:
            raise InvalidRequest(f"unknown operation {config.config_operation}")
    return changed


def _value(config: messages.AlterableConfig) -> str:
    if config.value is None:
        raise InvalidRequest(f"{config.name} has no value")
    return config.value


CONFIG_APIS = [
    message_api(
        ApiKey.DESCRIBE_CONFIGS,
        range(1, 4),
        messages.DescribeConfigsRequest,
        describe_configs,
        thread=Broker.in_zookeeper_thread,  # the answer may be long
    ),
    message_api(
        ApiKey.ALTER_CONFIGS,
        range(2),
        messages.AlterConfigsRequest,
        partial(alter_configs, _replaced),
        thread=Broker.in_zookeeper_thread,
    ),
    message_api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        range(1),
        messages.IncrementalAlterConfigsRequest,
        partial(alter_configs, _changed),
        thread=Broker.in_zookeeper_thread,
    ),
]
