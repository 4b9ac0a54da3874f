"""Kafka's model of rights: the rights that a request needs, the rights of a client, and the refusals.

Before its handler runs, an API states the operations that a request needs on topics, groups or the cluster.
`Access` is one client's connection to the authorizer, which alone decides. Without an authorizer every client
may do everything; a client that has not logged in may do nothing.
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
"""The principal of a client on a listener without authentication, as in Kafka."""


class Operation(IntEnum):
    """Operations by Kafka's numbers; 100 and above are Millrace's own, and not part of Kafka's ALL."""

    ALL = 2
    """Every operation of Kafka; only rules use it, and no request needs it."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    """Operations that only brokers need."""
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    MIRROR_WRITE = 100


class ResourceType(IntEnum):
    """Types of resources, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Resource(NamedTuple):
    """A topic, a group or the cluster. The name None means any resource of the type."""

    type: ResourceType
    name: str | None


CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
ANY_TOPIC = Resource(ResourceType.TOPIC, None)
Refused: TypeAlias = frozenset[Resource]
"""Resources in a request that its client may not use."""
NOTHING_REFUSED: Refused = frozenset()


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


class Need(NamedTuple):
    """A right that a request needs; `instead` is an alternative right."""

    operation: Operation
    resource: Resource
    instead: Need | None = None


def may_create(name: str) -> Need:
    """Return the right to create a topic: for its name, or for all of the cluster."""
    return Need(Operation.CREATE, topic(name), instead=Need(Operation.CREATE, CLUSTER))


def open_to_all(_: object) -> Iterable[Need]:
    """Return no needs, for an API that is served before a login."""
    return ()


class Authorizer(Protocol):
    """The authorizer, which decides the rights of principals."""

    version: int
    """Number that changes whenever any right changes."""

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool: ...


class Access:
    """The present rights of one client, from one host: each decision asks the authorizer."""

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
        """Create the access of a client. Without an authorizer a client may do everything.

        A super user always may.
        """
        self._authorizer = authorizer
        self.everything = authorizer is None or is_super
        """True when nothing is ever refused: then no right is looked up."""
        self.principal, self.host, self.journal = principal, host, journal
        self.unchecked = self.everything and journal is None
        """True when nothing is ever refused or logged: then a request's needs are not computed."""
        self.meter = meter
        """The meter of the client's use; None: no quota limits it."""

    @property
    def version(self) -> int:
        """Number that changes whenever any right changes."""
        return 0 if self._authorizer is None else self._authorizer.version

    def allows(self, need: Need) -> bool:
        """Return True if the client has the right, or its alternative."""
        if self.everything or self._authorizer is None:
            return True
        wanted: Need | None = need
        while wanted is not None:
            if self._authorizer.allows(self.principal, self.host, wanted.operation, wanted.resource):
                return True
            wanted = wanted.instead
        return False

    def refused(self, needs: Iterable[Need]) -> Refused:
        """Return the resources of the needs to which the client has no right."""
        return frozenset(need.resource for need in needs if not self.allows(need))


@dataclass(frozen=True, slots=True)
class Guard:
    """Decides about the clients of a broker with an authorizer."""

    authorizer: Authorizer
    super_users: Container[str]
    journal: Journal
    meters: Meters

    def access(self, principal: str, host: str) -> Access:
        is_super = principal in self.super_users
        return Access(
            self.authorizer, principal, host, self.journal, is_super=is_super, meter=self.meters.of(principal)
        )


class _NoRights:
    version = 0

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return False


UNAUTHENTICATED = Access(_NoRights(), "", "")
"""The rights of a client that must log in first: only APIs with `open_to_all`."""


CHANGES = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})
"""Operations that are logged even when they are allowed."""


_REFUSALS: dict[ResourceType, type[BrokerError]] = {
    ResourceType.TOPIC: errors.TopicAuthorizationFailed,
    ResourceType.GROUP: errors.GroupAuthorizationFailed,
    ResourceType.CLUSTER: errors.ClusterAuthorizationFailed,
}


def refusal(resource: Resource) -> BrokerError:
    """Return the error for a client without a right to the resource."""
    return _REFUSALS[resource.type](f"no right to do this with {text_of(resource)}: ask an operator for it")


def text_of(resource: Resource) -> str:
    if resource == CLUSTER:
        return "the cluster"
    type_ = resource.type.name.lower()
    return f"any {type_}" if resource.name is None else f"{type_} {resource.name}"


def code(resource: Resource) -> ErrorCode:
    return _REFUSALS[resource.type].code
