"""Options of `millrace auditor` on which verdicts depend."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.topics_file import NO_POLICY, TopicPolicies
from millrace_audit.reports.messages import now_ms

RUNBOOKS = "docs/runbooks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options on which verdicts depend."""

    origins: Sequence[str]
    """Clusters that producers send to. No window is final before each of them has sent a heartbeat."""
    carried: str = ""
    """Regular expression for topics that need no better verdict than `carried`."""
    policies: TopicPolicies = field(default_factory=dict)
    """Policies from the file of topics: owners, and further topics for which `carried` is enough."""
    grace_ms: int = 60_000
    """Largest difference between clocks. A window is final no earlier than this time after its end."""
    hello_patience_ms: int = 600_000
    """Time to wait for an instance with only a hello; also the time after which any instance is silent."""
    fold_after_ms: int = 24 * 3_600_000
    """Time without a change after which a complete window is folded, which saves space."""
    keep_ms: int = 90 * 24 * 3_600_000
    """Age at which a window expires if it has not changed for as long; incomplete windows never expire."""
    runbooks: str = RUNBOOKS
    """Address of the runbooks, without the section."""
    clock_ms: Callable[[], int] = now_ms
    """The auditor's clock. A reader's heartbeat with a later time counts as one with this time."""

    def carried_is_enough(self, topic: str) -> bool:
        """True if an hour of the topic is proven once it is `carried`."""
        policy = self.policies.get(topic, NO_POLICY)
        return policy.proof == "carried" or re.fullmatch(self.carried, topic) is not None

    def owner_of(self, topic: str) -> str:
        """Return the topic's owner in the file of topics, or an empty text."""
        return self.policies.get(topic, NO_POLICY).owner
