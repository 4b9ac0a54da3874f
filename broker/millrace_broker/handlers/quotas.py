"""DescribeClientQuotas and AlterClientQuotas, v0 and v1: users' quotas as Kafka's own tools manage them.

Only a broker with an authorizer has quotas and accepts them. Left out: quotas of client ids, which a client
chooses itself, and of IP addresses, which a client shares with other clients.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TypeVar

from millrace.errors import ErrorCode, InvalidRequest, SecurityDisabled
from millrace.wire.fields import ApiMessage, array, boolean, f64, i8, i16, i32, string
from millrace.wire.messages import ApiKey
from millrace_broker.coordination.quotas import Quotas, QuotaStore
from millrace_broker.handlers.table import Call, in_thread, outcome_of, requester, serves
from millrace_broker.security.quotas import KEYS
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType

M = TypeVar("M")
USER = "user"
EXACT, DEFAULT, ANY = 0, 1, 2
"""Match types of Kafka's filters."""
MAX_NAME_CHARACTERS = 249


def _store(call: Call[M]) -> QuotaStore:
    if call.quotas is None:
        raise SecurityDisabled("this broker has no authorizer, and so no quotas: see docs/security.md")
    return call.quotas


class QuotaEntity(ApiMessage):
    entity_type: str = string()
    entity_name: str | None = string(null_since=0)  # None: the type's default


class DescribeClientQuotasRequest(ApiMessage, request_of=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    class Component(ApiMessage):
        entity_type: str = string()
        match_type: int = i8()
        match: str | None = string(null_since=0)

    components: tuple[Component, ...] = array(Component)
    strict: bool = boolean()


class DescribeClientQuotasResponse(ApiMessage, response_of=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    class Entry(ApiMessage):
        class Value(ApiMessage):
            key: str = string()
            value: float = f64()

        entity: tuple[QuotaEntity, ...] = array(QuotaEntity)
        values: tuple[Value, ...] = array(Value)

    throttle_time: int = i32(default=0)
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)
    entries: tuple[Entry, ...] | None = array(Entry, null_since=0)


@serves(
    range(2),
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    needs=lambda _: [Need(Operation.DESCRIBE_CONFIGS, CLUSTER)],
)
def describe_quotas(call: Call[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    request, quotas = call.request, {} if call.quotas is None else call.quotas.limits
    Entry = DescribeClientQuotasResponse.Entry
    if len({one.entity_type for one in request.components}) < len(request.components):
        raise InvalidRequest("a type of entity is named twice")  # each name would cost a scan of all users
    for one in request.components:
        if one.match_type not in (EXACT, DEFAULT, ANY):
            raise InvalidRequest(f"match type {one.match_type} is none of 0, 1 and 2")

    def matches(user: str | None) -> bool:
        if request.strict and not request.components:
            return False
        return all(
            one.entity_type == USER
            and (
                one.match_type == ANY
                or (one.match_type == DEFAULT and user is None)
                or (one.match_type == EXACT and user is not None and one.match == user)
            )
            for one in request.components
        )

    entries = tuple(
        Entry(
            entity=(QuotaEntity(entity_type=USER, entity_name=user),),
            values=tuple(Entry.Value(key=key, value=value) for key, value in limits.items()),
        )
        for user, limits in quotas.items()
        if matches(user)
    )
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=entries)


class AlterClientQuotasRequest(ApiMessage, request_of=ApiKey.ALTER_CLIENT_QUOTAS):
    class Entry(ApiMessage):
        class Op(ApiMessage):
            key: str = string()
            value: float = f64()
            remove: bool = boolean()

        entity: tuple[QuotaEntity, ...] = array(QuotaEntity)
        ops: tuple[Op, ...] = array(Op)

    entries: tuple[Entry, ...] = array(Entry)
    validate_only: bool = boolean()


_Entry = AlterClientQuotasRequest.Entry


class AlterClientQuotasResponse(ApiMessage, response_of=ApiKey.ALTER_CLIENT_QUOTAS):
    class Entry(ApiMessage):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        entity: tuple[QuotaEntity, ...] = array(QuotaEntity)

    throttle_time: int = i32(default=0)
    entries: tuple[Entry, ...] = array(Entry)


@in_thread(
    range(2),
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    needs=lambda _: [Need(Operation.ALTER_CONFIGS, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
)
def alter_quotas(call: Call[AlterClientQuotasRequest]) -> AlterClientQuotasResponse:
    request, journal = call.request, call.received.client.access.journal
    Result, results = AlterClientQuotasResponse.Entry, []

    def alter(entry: _Entry) -> None:
        call.check(CLUSTER)
        store = _store(call)
        user = _user(entry)
        for change in entry.ops:
            _check(change)
        if request.validate_only:
            return
        store.change(partial(_changed, user=user, entry=entry))
        if journal is not None:
            journal.changed(requester(call.received), f"quotas: {'everybody' if user is None else user}")

    for entry in request.entries:
        code, reason, _ = outcome_of(partial(alter, entry), "changing quotas")
        results.append(Result(error_code=code, error_message=reason, entity=entry.entity))
    return AlterClientQuotasResponse(entries=tuple(results))


def _user(entry: _Entry) -> str | None:
    """Return the user whose quotas change; None for the default of all users."""
    if len(entry.entity) != 1 or entry.entity[0].entity_type != USER:
        raise InvalidRequest("quotas are by user: name one user, or the default of users, and nothing else")
    name = entry.entity[0].entity_name
    if name is not None and not (0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
        raise InvalidRequest(f"a user's name has 1 to {MAX_NAME_CHARACTERS} printable characters")
    return name


def _check(change: _Entry.Op) -> None:
    if change.key not in KEYS:
        raise InvalidRequest(f"quota {change.key[:100]!r} is none of {', '.join(KEYS)}")
    if not change.remove and not (math.isfinite(change.value) and change.value > 0):
        raise InvalidRequest(f"{change.key} is {change.value}: a quota is above 0")


def _changed(quotas: Quotas, user: str | None, entry: _Entry) -> Quotas:
    limits = dict(quotas.get(user, {}))
    for change in entry.ops:
        if change.remove:
            limits.pop(change.key, None)
        else:
            limits[change.key] = change.value
    return {**quotas, user: limits}
