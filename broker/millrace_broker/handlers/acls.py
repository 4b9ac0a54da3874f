"""DescribeAcls, CreateAcls and DeleteAcls, v1 to v3: access rules, as Kafka's own tools manage them.

A rule names a topic, a group or the cluster, literally or by a prefix. Any broker takes changes. They are in
force on this broker at once, and on the other brokers when ZooKeeper has notified them. Creating a rule that
exists is no error. Left out: v0, transactional ids, delegation tokens and users as resources.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import TypeVar

from millrace.errors import BrokerError, ErrorCode, InvalidRequest, SecurityDisabled
from millrace.wire import security_messages as messages
from millrace_broker.coordination.acls import AclStore
from millrace_broker.handlers.table import Call, in_thread, requester, serves
from millrace_broker.partitions.broker import Broker
from millrace_broker.security.acls import Pattern, Rule, RuleFilter, check_rule
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType

E = TypeVar("E", bound=IntEnum)
M = TypeVar("M")
_VERSIONS = range(1, 4)
_ANY, _MATCH = 1, 2
"""Values of a filter: any pattern; or every rule that applies to the name."""
_DENY, _ALLOW = 2, 3


def _store(call: Call[M]) -> AclStore:
    if call.acls is None:
        raise SecurityDisabled("this broker has no authorizer: set `authorizer = true` under [security]")
    return call.acls


@serves(
    _VERSIONS,
    messages.DescribeAclsRequest,
    messages.DescribeAclsResponse,
    needs=lambda _: [Need(Operation.DESCRIBE, CLUSTER)],
    thread=Broker.in_look_up_thread,
)
def describe_acls(call: Call[messages.DescribeAclsRequest]) -> messages.DescribeAclsResponse:
    wanted = _filter(call.request)
    found = [rule for rule in _store(call).acls.rules if wanted.takes(rule)]
    Resource = messages.DescribeAclsResponse.Resource
    resources = tuple(
        Resource(
            resource_type=type_,
            resource_name=name,
            pattern_type=pattern,
            acls=tuple(
                Resource.AclDescription(
                    principal=rule.principal,
                    host=rule.host,
                    operation=rule.operation,
                    permission_type=_ALLOW if rule.allow else _DENY,
                )
                for rule in rules
            ),
        )
        for (type_, pattern, name), rules in groupby(found, lambda rule: rule[:3])
    )
    return messages.DescribeAclsResponse(error_code=ErrorCode.NONE, resources=resources)


@in_thread(
    _VERSIONS,
    messages.CreateAclsRequest,
    messages.CreateAclsResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
)
def create_acls(call: Call[messages.CreateAclsRequest]) -> messages.CreateAclsResponse:
    rules: list[Rule] = []
    outcomes: list[BrokerError | None] = []
    for creation in call.request.creations:
        try:
            call.check(CLUSTER)
            _store(call)
            rules.append(_rule(creation))
            outcomes.append(None)
        except BrokerError as error:
            outcomes.append(error)
    if rules:
        try:
            _store(call).change(lambda there: [*there, *rules])
        except BrokerError as failure:
            outcomes = [error or failure for error in outcomes]
        else:
            _log_changes(call, "created", rules)
    results = tuple(
        messages.CreateAclsResponse.Result(
            error_code=_code(error), error_message=str(error) if error else None
        )
        for error in outcomes
    )
    return messages.CreateAclsResponse(results=results)


@in_thread(
    _VERSIONS,
    messages.DeleteAclsRequest,
    messages.DeleteAclsResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
)
def delete_acls(call: Call[messages.DeleteAclsRequest]) -> messages.DeleteAclsResponse:
    FilterResult = messages.DeleteAclsResponse.FilterResult
    outcomes: list[RuleFilter | BrokerError] = []
    for asked in call.request.filters:
        try:
            call.check(CLUSTER)
            _store(call)
            outcomes.append(_filter(asked))
        except BrokerError as error:
            outcomes.append(error)
    filters = [wanted for wanted in outcomes if isinstance(wanted, RuleFilter)]
    found: list[Rule] = []
    if filters:
        try:
            found = _delete(_store(call), filters)
            _log_changes(call, "deleted", found)
        except BrokerError as failure:
            outcomes = [failure if isinstance(wanted, RuleFilter) else wanted for wanted in outcomes]

    def result(outcome: RuleFilter | BrokerError) -> messages.DeleteAclsResponse.FilterResult:
        if isinstance(outcome, BrokerError):
            return FilterResult(error_code=outcome.code, error_message=str(outcome))
        matching = tuple(
            FilterResult.Match(
                resource_type=rule.type,
                resource_name=rule.name,
                pattern_type=rule.pattern,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=_ALLOW if rule.allow else _DENY,
            )
            for rule in found
            if outcome.takes(rule)
        )
        return FilterResult(error_code=ErrorCode.NONE, error_message=None, matching_acls=matching)

    return messages.DeleteAclsResponse(filter_results=tuple(map(result, outcomes)))


def _delete(store: AclStore, filters: Sequence[RuleFilter]) -> list[Rule]:
    """Delete every rule that matches a filter; return the deleted rules."""
    found: dict[Rule, None] = {}

    def without(there: Collection[Rule]) -> Iterable[Rule]:
        # Kept over retries: the first write may have succeeded although its answer was lost.
        found.update((rule, None) for rule in there if any(wanted.takes(rule) for wanted in filters))
        return set(there) - found.keys()

    store.change(without)
    return list(found)


def _log_changes(call: Call[M], verb: str, rules: Iterable[Rule]) -> None:
    journal = call.received.client.access.journal
    if journal is None:
        return
    for rule in rules:
        journal.changed(requester(call.received), f"{verb}: {rule}")


def _code(error: BrokerError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


def _rule(asked: messages.CreateAclsRequest.Creation) -> Rule:
    """Return the requested rule. Raise InvalidRequest when the rule can never decide anything."""
    rule = Rule(
        _one(ResourceType, asked.resource_type, "type of resource"),
        _one(Pattern, asked.resource_pattern_type, "type of pattern"),
        asked.resource_name,
        asked.principal,
        asked.host,
        _one(Operation, asked.operation, "operation"),
        _allows(asked.permission_type),
    )
    check_rule(rule)
    return rule


def _filter(asked: messages.DescribeAclsRequest) -> RuleFilter:
    pattern = asked.pattern_type_filter
    return RuleFilter(
        _maybe(ResourceType, asked.resource_type_filter, "type of resource"),
        None if pattern in (_ANY, _MATCH) else _one(Pattern, pattern, "type of pattern"),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        _maybe(Operation, asked.operation, "operation"),
        None if asked.permission_type == _ANY else _allows(asked.permission_type),
        about=pattern == _MATCH,
    )


def _maybe(values: type[E], number: int, what: str) -> E | None:
    return None if number == _ANY else _one(values, number, what)


def _one(values: type[E], number: int, what: str) -> E:
    try:
        return values(number)
    except ValueError:
        known = ", ".join(f"{value.name} ({int(value)})" for value in values)
        raise InvalidRequest(f"no {what} is numbered {number} here: {known} are") from None


def _allows(permission: int) -> bool:
    if permission not in (_DENY, _ALLOW):
        raise InvalidRequest(f"permission {permission} is neither DENY (2) nor ALLOW (3)")
    return permission == _ALLOW
