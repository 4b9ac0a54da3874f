"""AlterConfigs, v0 and v1: give topics these settings and no others of their own.

Any broker takes it, and each one's open partitions follow. A broker's own settings are in its file and are
refused. IncrementalAlterConfigs differs in what it makes of the settings that are there; the rest is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import alter_topic
from millrace.errors import InvalidRequest
from millrace.handlers.outcome import outcome_of
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.admin_messages import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ResourceType,
)
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey

Settings = Mapping[str, str]


def handle(broker: Broker, request: Request) -> None:
    """Replace the topics' settings, in a thread."""
    asked = decode(AlterConfigsRequest, ApiKey.ALTER_CONFIGS, request.api_version, request.body)
    alter_resources(broker, request, asked.resources, _replaced, validate_only=asked.validate_only)


def _replaced(_: Settings, configs: Sequence[AlterableConfig]) -> Settings:
    return {config.name: required_value(config) for config in configs}


def alter_resources(
    broker: Broker,
    request: Request,
    resources: Sequence[AlterConfigsResource],
    altered: Callable[[Settings, Sequence[AlterableConfig]], Settings],
    *,
    validate_only: bool,
) -> None:
    """Answer with what became of each resource; `altered` makes new settings of those that are there."""
    times = Counter((each.resource_type, each.resource_name) for each in resources)
    once = {(each.resource_type, each.resource_name): each for each in resources}

    def alter(resource: AlterConfigsResource) -> None:
        names = [config.name for config in resource.configs]
        if times[resource.resource_type, resource.resource_name] > 1:
            raise InvalidRequest(f"{resource.resource_name} is named more than once")
        if resource.resource_type == ResourceType.BROKER:
            raise InvalidRequest("a broker's settings are in its configuration file: change that, restart it")
        if resource.resource_type != ResourceType.TOPIC:
            raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        if len(set(names)) < len(names):
            raise InvalidRequest("a setting is named more than once")
        alter_topic(
            broker, resource.resource_name, lambda settings: altered(settings, resource.configs),
            validate_only=validate_only,
        )  # fmt: skip

    def result(resource: AlterConfigsResource) -> AlterConfigsResourceResponse:
        code, reason = outcome_of(lambda: alter(resource), f"altering {resource.resource_name}")
        return AlterConfigsResourceResponse(
            error_code=code, error_message=reason, resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )  # fmt: skip

    def work() -> bytes:
        response = AlterConfigsResponse(responses=tuple(result(resource) for resource in once.values()))
        return encode(response, request.api_key, request.api_version)

    answer_from_thread(broker.in_zookeeper_thread, request, work)


def required_value(config: AlterableConfig) -> str:
    """The value to set; InvalidRequest for none."""
    if config.value is None:
        raise InvalidRequest(f"{config.name} has no value")
    return config.value


ALTER_CONFIGS = Api(key=ApiKey.ALTER_CONFIGS, versions=frozenset(range(2)), advertised=(0, 1), handle=handle)
