"""DescribeUserScramCredentials and AlterUserScramCredentials, v0: users as Kafka's own tools manage them.

A client hashes the password itself: none is in a request. Only a broker with an authorizer takes users and
describes them: without one any client that reaches it could. Another broker answers that there are none. If
one change of a user is invalid, none of that user's changes is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, TypeVar

from millrace.errors import (
    BrokerError,
    ConfigError,
    DuplicateResource,
    ErrorCode,
    ResourceNotFound,
    SecurityDisabled,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from millrace.wire.fields import Message, array, data, i8, i16, i32, string
from millrace.wire.messages import ApiKey
from millrace_broker.coordination.users import Users, check_user_name
from millrace_broker.handlers.table import Call, asker, in_thread, outcome_of, serves
from millrace_broker.partitions.broker import Broker
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType
from millrace_broker.security.scram import MECHANISM_NUMBERS, check_iterations, credential_of_salted

M = TypeVar("M")
_NAMES = {number: name for name, number in MECHANISM_NUMBERS.items()}
_MIN_SALT_BYTES, _MAX_SALT_BYTES = 12, 256
"""Limits of a salt. A shorter one could be kept, but its user could never log in: `scramp` refuses it."""


def _users(call: Call[M]) -> Users:
    if call.users is None or call.acls is None:
        raise SecurityDisabled("this broker has no authorizer: see docs/security.md")
    return call.users


class DescribeUserScramCredentialsRequest(Message, request_of=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    class User(Message):
        name: str = string()

    users: tuple[User, ...] | None = array(User, null_since=0)  # None: all


class DescribeUserScramCredentialsResponse(Message, response_of=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    class Result(Message):
        class CredentialInfo(Message):
            mechanism: int = i8()
            iterations: int = i32()

        user: str = string()
        error_code: int = i16()
        error_message: str | None = string(null_since=0, default=None)
        credential_infos: tuple[CredentialInfo, ...] = array(CredentialInfo, default=())

    throttle_time: int = i32(default=0)
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)
    results: tuple[Result, ...] = array(Result, default=())


@serves(
    range(1),
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    needs=lambda _: [Need(Operation.DESCRIBE, CLUSTER)],
    thread=Broker.in_look_up_thread,
)
def describe_users(call: Call[DescribeUserScramCredentialsRequest]) -> DescribeUserScramCredentialsResponse:
    users = None if call.acls is None else call.users
    asked = call.request.users
    names = [user.name for user in asked] if asked else [] if users is None else users.names
    times = Counter(names)
    Result = DescribeUserScramCredentialsResponse.Result

    def describe(name: str) -> Iterable[DescribeUserScramCredentialsResponse.Result.CredentialInfo]:
        if times[name] > 1:
            raise DuplicateResource(f"user {name!r} is named more than once")
        if users is None or (known := users.credentials(name)) is None:
            raise ResourceNotFound(f"there is no user {name!r}")
        return [
            Result.CredentialInfo(mechanism=MECHANISM_NUMBERS[mechanism], iterations=one.iterations)
            for mechanism, one in known.items()
        ]

    results = []
    for name in dict.fromkeys(names):
        code, reason, infos = outcome_of(partial(describe, name), f"describing user {name!r}")
        results.append(
            Result(user=name, error_code=code, error_message=reason, credential_infos=tuple(infos or ()))
        )
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, results=tuple(results))


class AlterUserScramCredentialsRequest(Message, request_of=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    class Deletion(Message):
        name: str = string()
        mechanism: int = i8()

    class Upsertion(Message):
        name: str = string()
        mechanism: int = i8()
        iterations: int = i32()
        salt: bytes = data()
        salted_password: bytes = data()

    deletions: tuple[Deletion, ...] = array(Deletion)
    upsertions: tuple[Upsertion, ...] = array(Upsertion)


UserChange: TypeAlias = AlterUserScramCredentialsRequest.Deletion | AlterUserScramCredentialsRequest.Upsertion


class AlterUserScramCredentialsResponse(Message, response_of=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    class Result(Message):
        user: str = string()
        error_code: int = i16()
        error_message: str | None = string(null_since=0, default=None)

    throttle_time: int = i32(default=0)
    results: tuple[Result, ...] = array(Result)


@in_thread(
    range(1),
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
)
def alter_users(call: Call[AlterUserScramCredentialsRequest]) -> AlterUserScramCredentialsResponse:
    request, journal = call.request, call.received.client.access.journal
    changes: dict[str, list[Callable[[Users], None]]] = {}
    wrong: dict[str, BrokerError] = {}
    asked: list[UserChange] = [*request.deletions, *request.upsertions]
    times = Counter((one.name, one.mechanism) for one in asked)
    for one in asked:
        of_user = changes.setdefault(one.name, [])
        try:
            if times[one.name, one.mechanism] > 1:
                raise DuplicateResource(f"user {one.name!r} is changed twice for one mechanism")
            of_user.append(_change(one))
        except BrokerError as error:
            wrong.setdefault(one.name, error)

    def alter(name: str) -> None:
        call.check(CLUSTER)
        users = _users(call)
        if name in wrong:
            raise wrong[name]
        for change in changes[name]:
            change(users)
        if journal is not None:
            journal.changed(asker(call.received), f"users: {name}")

    Result, results = AlterUserScramCredentialsResponse.Result, []
    for name in changes:
        code, reason, _ = outcome_of(partial(alter, name), f"changing user {name!r}")
        results.append(Result(user=name, error_code=code, error_message=reason))
    return AlterUserScramCredentialsResponse(results=tuple(results))


def _change(asked: UserChange) -> Callable[[Users], None]:
    """Return the change of the users that is asked for; BrokerError when it is invalid for any of them."""
    name, mechanism = asked.name, _NAMES.get(asked.mechanism)
    if mechanism is None:
        known = ", ".join(MECHANISM_NUMBERS)
        raise UnsupportedSaslMechanism(f"mechanism {asked.mechanism} is none of {known}")
    if isinstance(asked, AlterUserScramCredentialsRequest.Deletion):
        return partial(_forget, name=name, mechanism=mechanism)
    try:
        check_user_name(name)
        check_iterations(asked.iterations)
    except ConfigError as error:
        raise UnacceptableCredential(str(error)) from None
    if not _MIN_SALT_BYTES <= len(asked.salt) <= _MAX_SALT_BYTES:
        raise UnacceptableCredential(
            f"a salt of {len(asked.salt)} bytes: between {_MIN_SALT_BYTES} and {_MAX_SALT_BYTES} are allowed"
        )
    credential = credential_of_salted(mechanism, asked.salt, asked.salted_password, asked.iterations)
    return lambda users: users.put(name, mechanism, credential)


def _forget(users: Users, name: str, mechanism: str) -> None:
    try:
        users.put(name, mechanism, None)
    except LookupError as error:
        raise ResourceNotFound(str(error)) from None
