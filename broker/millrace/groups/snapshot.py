"""How a group looked at a moment: for Kafka's tools, for metrics, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from millrace.groups.member import ClientName


class State(StrEnum):
    """Where a group is, as Kafka's tools call it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """One member; metadata and assignment only while the group is stable."""

    member_id: str
    instance_id: str | None = None
    client: ClientName
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group; `protocol` is empty unless it is stable, `generation` 0 until it has had members."""

    name: str
    state: State
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: tuple[MemberSnapshot, ...] = ()
