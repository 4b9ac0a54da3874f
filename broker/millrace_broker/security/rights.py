"""What a request needs, what a client may do, and so what is refused: Kafka's model of rights.

An API says before its handler runs what a request needs of which topics, groups or the cluster. `Access` is
one client's way to the authorizer, the only thing that decides. Without an authorizer every client may do
everything; a client that has not logged in may do nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from millrace import errors
from millrace.errors import BrokerError, ErrorCode
from millrace_broker.security.journal import Journal
from millrace_broker.security.quotas import Meter, Meters

ANONYMOUS = "User:ANONYMOUS"
"""Who a client is on a listener that asks for no proof, as in Kafka."""


class Operation(IntEnum):
    """What may be done, by Kafka's numbers; 100 and above are Millrace's own, and no part of Kafka's ALL."""

    ALL = 2
    """Every operation of Kafka's; only rules name it, no request needs it."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    """What only brokers do."""
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    MIRROR_WRITE = 100


class ResourceType(IntEnum):
    """What it may be done to, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Resource(NamedTuple):
    """A topic, a group or the cluster; `name` None stands for any of the type."""

    type: ResourceType
    name: str | None


CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
ANY_TOPIC = Resource(ResourceType.TOPIC, None)
Refused: TypeAlias = frozenset[Resource]
"""What of a request its client may not use."""
NOTHING_REFUSED: Refused = frozenset()


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


class Need(NamedTuple):
    """A right that a request needs; `instead` is one that does as well."""

    operation: Operation
    resource: Resource
    instead: Need | None = None


def may_create(name: str) -> Need:
    """To create a topic takes the right for its name, or for all of the cluster."""
    return Need(Operation.CREATE, topic(name), instead=Need(Operation.CREATE, CLUSTER))


def open_to_all(_: object) -> Iterable[Need]:
    """The needs of what a client asks before it has logged in; no other API is served before that."""
    return ()


class Authorizer(Protocol):
    """Says who has which right."""

    version: int
    """Changes whenever any right does."""

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool: ...


class Access:
    """What one client may do, from one host, now: the authorizer is asked every time."""

    __slots__ = ("_authorizer", "everything", "host", "journal", "meter", "principal", "unchecked")

    def __init__(
        self,
        authorizer: Authorizer | None,
        principal: str,
        host: str,
        journal: Journal | None = None,
        *,
        is_super: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """Without an authorizer the client may do everything, and so may a super user."""
        self._authorizer = authorizer
        self.everything = authorizer is None or is_super
        """True when nothing is ever refused: nothing needs to be looked up then."""
        self.principal, self.host, self.journal = principal, host, journal
        self.unchecked = self.everything and journal is None
        """True when nothing is ever refused or written down: what a request needs is not worked out."""
        self.meter = meter
        """What counts what the client takes; None: it may take as much as it likes."""

    @property
    def version(self) -> int:
        """Changes whenever any right does."""
        return 0 if self._authorizer is None else self._authorizer.version

    def allows(self, need: Need) -> bool:
        """Whether the client has the right, or the one that does as well."""
        if self.everything or self._authorizer is None:
            return True
        wanted: Need | None = need
        while wanted is not None:
            if self._authorizer.allows(self.principal, self.host, wanted.operation, wanted.resource):
                return True
            wanted = wanted.instead
        return False

    def refused(self, needs: Iterable[Need]) -> Refused:
        """The resources of those needs that the client has no right to."""
        return frozenset(need.resource for need in needs if not self.allows(need))


@dataclass(frozen=True, slots=True)
class Guard:
    """What decides about the clients of a broker with an authorizer."""

    authorizer: Authorizer
    super_users: Container[str]
    journal: Journal
    meters: Meters

    def access(self, principal: str, host: str) -> Access:
        is_super = principal in self.super_users
        return Access(
            self.authorizer, principal, host, self.journal, is_super=is_super, meter=self.meters.of(principal)
        )


class _AllowsNothing:
    version = 0

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return False


NOBODY = Access(_AllowsNothing(), "", "")
"""What a client may do that must prove first who it is: nothing but what is `open_to_all`."""


CHANGES = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})
"""What is written down when it is allowed, too."""


_REFUSALS: dict[ResourceType, type[BrokerError]] = {
    ResourceType.TOPIC: errors.TopicAuthorizationFailed,
    ResourceType.GROUP: errors.GroupAuthorizationFailed,
    ResourceType.CLUSTER: errors.ClusterAuthorizationFailed,
}


def refusal(resource: Resource) -> BrokerError:
    """The error that a client is answered for a resource it has no right to."""
    return _REFUSALS[resource.type](f"no right to do this with {text_of(resource)}: ask an operator for it")


def text_of(resource: Resource) -> str:
    if resource == CLUSTER:
        return "the cluster"
    type_ = resource.type.name.lower()
    return f"any {type_}" if resource.name is None else f"{type_} {resource.name}"


def code(resource: Resource) -> ErrorCode:
    return _REFUSALS[resource.type].code
