"""The rights of the users of a security folder: each user has the rights that its processes need, and no user
has all rights.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace_broker.security.acls import ANY_NAME, EVERYWHERE, Pattern, Rule
from millrace_broker.security.rights import CLUSTER, Operation, Resource, ResourceType

COUNTED = ("audit-counts", "audit-offline")
"""Topics in which readers report their counts: another writer could forge counts there."""
_TOPICS = Resource(ResourceType.TOPIC, ANY_NAME)
_GROUPS = Resource(ResourceType.GROUP, ANY_NAME)
_READS = (Operation.READ, Operation.DESCRIBE_CONFIGS)
_ALLOWED = {
    "admin": [(Operation.ALL, _TOPICS), (Operation.ALL, _GROUPS), (Operation.ALL, CLUSTER)],
    "producer": [(Operation.WRITE, _TOPICS)],
    "consumer": [(Operation.READ, _TOPICS), (Operation.READ, _GROUPS)],
    "broker": [(Operation.CLUSTER_ACTION, CLUSTER)],
    "mirror": [(operation, _TOPICS) for operation in _READS],
    "reader": [
        *((operation, _TOPICS) for operation in _READS),
        *((Operation.WRITE, Resource(ResourceType.TOPIC, name)) for name in COUNTED),
    ],
    "auditor": [
        *((operation, _TOPICS) for operation in _READS),
        (Operation.WRITE, Resource(ResourceType.TOPIC, "audit-offline")),  # operators' decisions
    ],
    "loads": [*((operation, _TOPICS) for operation in _READS), (Operation.MIRROR_WRITE, _TOPICS)],
}
_DENIED = {
    user: [(Operation.WRITE, Resource(ResourceType.TOPIC, name)) for name in COUNTED]
    for user in ("admin", "producer")
}


def rules_of_users() -> Iterator[Rule]:
    """Yield the rules for a cluster whose users are those of `millrace security init`."""
    for allow, table in ((True, _ALLOWED), (False, _DENIED)):
        for user, rights in table.items():
            for operation, resource in rights:
                assert resource.name is not None
                yield Rule(
                    resource.type,
                    Pattern.LITERAL,
                    resource.name,
                    f"User:{user}",
                    EVERYWHERE,
                    operation,
                    allow,
                )
