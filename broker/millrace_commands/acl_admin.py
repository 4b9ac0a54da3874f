"""Requests of operators about a cluster's access control lists: listing and changing them.

The client's side, of Millrace and of Apache Kafka. Each call is one request to one broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import raise_error
from millrace.wire import security_messages as messages
from millrace.wire.messages import ApiKey
from millrace_broker.security.acls import Pattern, Rule, RuleFilter
from millrace_broker.security.rights import Operation, ResourceType

_VERSION = 1
_ANY, _MATCH = 1, 2
_DENY, _ALLOW = 2, 3


def rules(client: ClusterClient, wanted: RuleFilter) -> list[Rule]:
    """Return the rules that match the filter, without rules about types of resources that Millrace does not
    have.

    Raise BrokerError when the cluster refuses.
    """
    answer = client.call(None, ApiKey.DESCRIBE_ACLS, _VERSION, _filter(wanted), messages.DescribeAclsResponse)
    raise_error(answer.error_code, "access control lists", answer.error_message)
    return _known(
        (found.resource_type, found.pattern_type, found.resource_name, one)
        for found in answer.resources
        for one in found.acls
    )


def add(client: ClusterClient, added: Sequence[Rule]) -> None:
    """Add rules; rules that exist already are no error. Raise BrokerError when a rule is refused."""
    creations = tuple(
        messages.CreateAclsRequest.Creation(
            resource_type=rule.type,
            resource_name=rule.name,
            resource_pattern_type=rule.pattern,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=_ALLOW if rule.allow else _DENY,
        )
        for rule in added
    )
    request = messages.CreateAclsRequest(creations=creations)
    answer = client.call(None, ApiKey.CREATE_ACLS, _VERSION, request, messages.CreateAclsResponse)
    for rule, result in zip(added, answer.results, strict=True):
        raise_error(result.error_code, f"rule `{rule}`", result.error_message)


def remove(client: ClusterClient, wanted: RuleFilter) -> list[Rule]:
    """Delete the rules that match the filter, and return them. Raise BrokerError when that is refused."""
    request = messages.DeleteAclsRequest(filters=(_filter(wanted),))
    answer = client.call(None, ApiKey.DELETE_ACLS, _VERSION, request, messages.DeleteAclsResponse)
    (result,) = answer.filter_results
    raise_error(result.error_code, "access control lists", result.error_message)
    return _known(
        (one.resource_type, one.pattern_type, one.resource_name, one) for one in result.matching_acls
    )


_Described = (
    messages.DescribeAclsResponse.Resource.AclDescription | messages.DeleteAclsResponse.FilterResult.Match
)


def _known(found: Iterable[tuple[int, int, str, _Described]]) -> list[Rule]:
    return [
        Rule(
            ResourceType(type_),
            Pattern(pattern),
            name,
            one.principal,
            one.host,
            Operation(one.operation),
            one.permission_type == _ALLOW,
        )
        for type_, pattern, name, one in found
        if type_ in set(ResourceType) and one.operation in set(Operation)
    ]


def _filter(wanted: RuleFilter) -> messages.DescribeAclsRequest:
    pattern = _MATCH if wanted.about else wanted.pattern or _ANY
    return messages.DescribeAclsRequest(
        resource_type_filter=wanted.type or _ANY,
        resource_name_filter=wanted.name,
        pattern_type_filter=pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation or _ANY,
        permission_type=_ANY if wanted.allow is None else _ALLOW if wanted.allow else _DENY,
    )
