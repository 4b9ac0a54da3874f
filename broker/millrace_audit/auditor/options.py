"""The options of `millrace auditor` that verdicts rest on: what the operator says about the installation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.topics_file import NO_POLICY, TopicPolicies
from millrace_audit.reports.messages import now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What the operator says about the installation."""

    origins: Sequence[str]
    """Clusters that are produced to; each must be heard of before anything is final."""
    carried: str = ""
    """A regular expression of the topics for which `carried` is proof enough."""
    policies: TopicPolicies = field(default_factory=dict)
    """The file of topics: owners, and topics for which `carried` is enough as well."""
    grace_ms: int = 60_000
    """How far clocks may differ: a window can be final this long after its end at the earliest."""
    hello_patience_ms: int = 600_000
    """An instance that has only said hello is awaited for this long, and a silent one is only pending."""
    fold_after_ms: int = 24 * 3_600_000
    """A complete window takes less room when it has not changed for so long."""
    keep_ms: int = 90 * 24 * 3_600_000
    """Windows that old are deleted once they have not changed for so long, but for incomplete ones."""
    clock_ms: Callable[[], int] = now_ms
    """The auditor's own: no reader, whatever its clock says, has counted what is still to come."""

    def carried_is_enough(self, topic: str) -> bool:
        """True if an hour of the topic is proven once it is `carried`."""
        policy = self.policies.get(topic, NO_POLICY)
        return policy.proof == "carried" or re.fullmatch(self.carried, topic) is not None

    def owner_of(self, topic: str) -> str:
        """Return the topic's owner in the file of topics, empty if it has none."""
        return self.policies.get(topic, NO_POLICY).owner
