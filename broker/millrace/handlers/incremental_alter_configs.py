"""IncrementalAlterConfigs, v0: set or delete some of the topics' own settings, leave the others.

What is deleted is again as the broker's file says. Left out: appending to lists and subtracting from them,
because no setting of a topic is a list here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.broker.broker import Broker
from millrace.broker.topic_settings import FIXED, SETTINGS, InvalidTopicConfig
from millrace.errors import InvalidRequest
from millrace.handlers.alter_configs import alter_resources, required_value
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.admin_messages import AlterableConfig, ConfigOperation, IncrementalAlterConfigsRequest
from millrace.wire.codec import decode
from millrace.wire.messages import ApiKey


def handle(broker: Broker, request: Request) -> None:
    """Change the topics' settings, in a thread."""
    asked = decode(
        IncrementalAlterConfigsRequest, ApiKey.INCREMENTAL_ALTER_CONFIGS, request.api_version, request.body
    )
    alter_resources(broker, request, asked.resources, _changed, validate_only=asked.validate_only)


def _changed(settings: Mapping[str, str], configs: Sequence[AlterableConfig]) -> Mapping[str, str]:
    changed = dict(settings)
    for config in configs:
        if config.config_operation == ConfigOperation.SET:
            changed[config.name] = required_value(config)
        elif config.config_operation == ConfigOperation.DELETE:
            if config.name not in changed and config.name not in SETTINGS and config.name not in FIXED:
                raise InvalidTopicConfig(f"unknown topic setting {config.name!r}")
            changed.pop(config.name, None)
        elif config.config_operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            raise InvalidTopicConfig(f"{config.name} is no list: set it or delete it")
        else:
            raise InvalidRequest(f"unknown operation {config.config_operation}")
    return changed


INCREMENTAL_ALTER_CONFIGS = Api(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=frozenset({0}), advertised=(0, 0), handle=handle
)
