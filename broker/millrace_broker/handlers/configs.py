"""DescribeConfigs v1 to v4, AlterConfigs v0 to v2, IncrementalAlterConfigs v0 and v1: of topics and brokers.

A broker describes only itself: clients send the request to the described broker. Any broker changes a topic's
settings; then every broker applies them to its open partitions. A broker's own settings are in its file:
setting one is refused, and deleting one changes nothing, because no setting is set at run time. Kafka's
cluster-wide broker settings, and the settings of loggers, clients and groups, are an empty list. Left out:
DescribeConfigs v0, which states no sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from millrace.errors import InvalidRequest, UnknownTopicOrPartition
from millrace.wire import admin_messages as messages
from millrace.wire.fields import replace
from millrace.wire.messages import ApiKey
from millrace_broker.handlers.table import Api, Call, in_thread, outcome_of
from millrace_broker.partitions import topic_settings
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.topic_changes import alter_topic
from millrace_broker.security import rights
from millrace_broker.security.rights import CLUSTER, Need, Operation

ConfigResource: TypeAlias = messages.AlterConfigsRequest.Resource
Config: TypeAlias = messages.AlterConfigsRequest.Resource.Config
R = TypeVar("R", messages.DescribeConfigsRequest.Resource, messages.AlterConfigsRequest.Resource)
Settings: TypeAlias = Mapping[str, str]
SettingsChange: TypeAlias = Callable[[Settings, Sequence[Config]], Settings]
"""Returns a topic's new settings, from its present ones and the requested changes."""


_BY_ITEM = (rights.ResourceType.TOPIC, rights.ResourceType.CLUSTER)


def _owner(resource: messages.DescribeConfigsRequest.Resource | ConfigResource) -> rights.Resource:
    """Return the resource whose right is needed: the topic, or the cluster for anything else."""
    is_topic = resource.resource_type == messages.ResourceType.TOPIC
    return rights.topic(resource.resource_name) if is_topic else CLUSTER


@in_thread(
    range(1, 5),
    messages.DescribeConfigsRequest,
    messages.DescribeConfigsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE_CONFIGS, _owner(one)) for one in asked.resources],
    by_item=_BY_ITEM,
)
def describe_configs(call: Call[messages.DescribeConfigsRequest]) -> messages.DescribeConfigsResponse:
    request = call.request

    def describe(resource: messages.DescribeConfigsRequest.Resource) -> Sequence[messages.DescribedConfig]:
        call.check(_owner(resource))
        settings, names = _settings(call.broker, resource), resource.configuration_keys
        return [
            replace(
                setting,
                synonyms=setting.synonyms if request.include_synonyms else (),
                documentation=setting.documentation if request.include_documentation else None,
            )
            for setting in settings
            if not names or setting.name in names
        ]

    def result(resource: messages.DescribeConfigsRequest.Resource) -> messages.DescribeConfigsResponse.Result:
        name = resource.resource_name
        code, reason, configs = outcome_of(partial(describe, resource), f"describing {name}")
        return messages.DescribeConfigsResponse.Result(
            error_code=code,
            error_message=reason,
            resource_type=resource.resource_type,
            resource_name=name,
            configs=tuple(configs or ()),
        )

    return messages.DescribeConfigsResponse(results=tuple(map(result, _by_name(request.resources))))


def _settings(
    broker: Broker, resource: messages.DescribeConfigsRequest.Resource
) -> Iterator[messages.DescribedConfig]:
    name = resource.resource_name
    if resource.resource_type == messages.ResourceType.TOPIC:
        topic = broker.cluster.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"no topic {name} in cluster {broker.config.cluster}")
        return topic_settings.describe_topic(broker.config.log, topic)
    if resource.resource_type not in list(messages.ResourceType):
        raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
    if resource.resource_type != messages.ResourceType.BROKER or not name:
        return iter(())
    number = broker.config.broker_id
    if name != str(number):
        raise InvalidRequest(f"this is broker {number}: send the request to broker {name}")
    return topic_settings.describe_broker(broker.config, broker.cluster.brokers.get(number))


def _alter(change: SettingsChange, call: Call[messages.AlterConfigsRequest]) -> messages.AlterConfigsResponse:
    """Apply `change` to the settings of each topic; each resource is answered by itself."""
    request = call.request
    resources = _by_name(request.resources)
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)

    def alter(resource: ConfigResource) -> None:
        call.check(_owner(resource))
        name, names = resource.resource_name, [config.name for config in resource.configs]
        if times[resource.resource_type, name] > 1:
            raise InvalidRequest(f"{name} is named more than once")
        if resource.resource_type == messages.ResourceType.BROKER:
            if {config.config_operation for config in resource.configs} == {messages.ConfigOperation.DELETE}:
                return
            raise InvalidRequest("a broker's settings are in its configuration file: change that, restart it")
        if resource.resource_type != messages.ResourceType.TOPIC:
            raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        if len(set(names)) < len(names):
            raise InvalidRequest("a setting is named more than once")
        alter_topic(
            call.broker, name, lambda own: change(own, resource.configs), validate_only=request.validate_only
        )

    def result(resource: ConfigResource) -> messages.AlterConfigsResponse.Resource:
        name = resource.resource_name
        code, reason, _ = outcome_of(partial(alter, resource), f"altering {name}")
        return messages.AlterConfigsResponse.Resource(
            error_code=code, error_message=reason, resource_type=resource.resource_type, resource_name=name
        )

    return messages.AlterConfigsResponse(responses=tuple(map(result, resources)))


def _by_name(resources: Iterable[R]) -> Collection[R]:
    """Return each resource once: otherwise a small request could cause an answer of any size."""
    return {(resource.resource_type, resource.resource_name): resource for resource in resources}.values()


def _replaced(_: Settings, configs: Sequence[Config]) -> Settings:
    return {config.name: _value(config) for config in configs}


def _changed(settings: Settings, configs: Sequence[Config]) -> Settings:
    """Return the settings with some set and some deleted.

    For a deleted setting the value in the broker's file applies.
    """
    changed = dict(settings)
    for config in configs:
        name, operation = config.name, config.config_operation
        if operation == messages.ConfigOperation.SET:
            changed[name] = _value(config)
        elif operation == messages.ConfigOperation.DELETE:
            if not (name in changed or topic_settings.is_setting(name)):
                raise topic_settings.InvalidTopicConfig(f"unknown topic setting {name!r}")
            changed.pop(name, None)
        elif operation in (messages.ConfigOperation.APPEND, messages.ConfigOperation.SUBTRACT):
            if name not in topic_settings.LISTS:
                raise topic_settings.InvalidTopicConfig(f"{name} is no list: set it or delete it")
            had = changed.get(name, topic_settings.FIXED[name].value).split(",")
            given = _value(config).split(",")
            kept = [one for one in had if one not in given]
            changed[name] = ",".join(
                [*kept, *given] if operation == messages.ConfigOperation.APPEND else kept
            )
        else:
            raise InvalidRequest(f"unknown operation {operation}")
    return changed


def _value(config: Config) -> str:
    if config.value is None:
        raise InvalidRequest(f"{config.name} has no value")
    return config.value


def _alters(key: ApiKey, versions: range, change: SettingsChange) -> Api[messages.AlterConfigsRequest]:
    declare = in_thread(
        versions,
        messages.AlterConfigsRequest,
        messages.AlterConfigsResponse,
        key=key,
        needs=lambda asked: [Need(Operation.ALTER_CONFIGS, _owner(one)) for one in asked.resources],
        by_item=_BY_ITEM,
    )
    return declare(partial(_alter, change))


alter_configs = _alters(ApiKey.ALTER_CONFIGS, range(3), _replaced)
incremental_alter_configs = _alters(ApiKey.INCREMENTAL_ALTER_CONFIGS, range(2), _changed)
