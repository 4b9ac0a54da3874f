"""The changes of who leads a partition and which replicas count, as functions from one state to the next.

Each is made with one compare-and-set of the topic's node in ZooKeeper, and is safe whoever makes it, however
late: what must hold stands here, not in who calls. None instead of a state means that the change is not, or
not any more, allowed.

`live`: the registered brokers and the id of the log directory that each of them uses now. A broker whose disk
was lost comes back with another id, so it is not the replica that the state names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from millrace.coordination.state import NO_LEADER, PartitionState

Directories = Mapping[int, str]
"""Broker -> the id of its log directory."""


def has_live_leader(state: PartitionState, live: Directories) -> bool:
    """True if the leader is registered, with the directory that holds its copy."""
    leader = state.leader
    return leader in live and live[leader] == state.isr.get(leader)


def may_lead(state: PartitionState, broker: int, directory: str, live: Directories) -> bool:
    """True for an in-sync replica, and for an eligible one while no in-sync replica lives.

    Both have flushed everything that was ever committed.
    """
    if state.isr.get(broker) == directory:
        return True
    return state.eligible.get(broker) == directory and not _alive(state.isr, live)


def elect(
    state: PartitionState, broker: int, directory: str, live: Directories, minimum: int
) -> PartitionState | None:
    """`broker` leads from the end of its log on in a new epoch; None unless it may lead.

    How long its log is does not matter. A leader that died before its in-sync replicas had flushed what it
    began with has committed nothing of it, and each of them must be able to go on.
    """
    if not may_lead(state, broker, directory, live):
        return None
    isr = {broker: directory}
    if broker in state.isr:
        isr |= {other: at for other, at in _alive(state.isr, live).items() if other != state.leader}
    return replace(
        state,
        leader=broker,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        eligible=_eligible({**state.eligible, **state.isr}, isr, minimum),
    )


def shrink(
    state: PartitionState, leader: int, epoch: int, gone: Collection[int], minimum: int
) -> PartitionState | None:
    """The leader of `epoch` goes on without the replicas `gone`; None if it leads no more, or none was in."""
    isr = {broker: at for broker, at in state.isr.items() if broker not in gone or broker == leader}
    if not _leads(state, leader, epoch) or len(isr) == len(state.isr):
        return None
    removed = {broker: at for broker, at in state.isr.items() if broker not in isr}
    return replace(state, isr=isr, eligible=_eligible({**state.eligible, **removed}, isr, minimum))


def expand(
    state: PartitionState, leader: int, epoch: int, joining: Directories, minimum: int
) -> PartitionState | None:
    """The leader of `epoch` takes these replicas in; None when it leads no more, or none may come in.

    A broker that is in under another directory must go out first: its entry still stands for bytes that may
    be lost, and only the removal makes the leader stop counting them.
    """
    new = {b: at for b, at in joining.items() if b in state.replicas and b not in state.isr}
    if not _leads(state, leader, epoch) or not new:
        return None
    isr = {**state.isr, **new}
    return replace(state, isr=isr, eligible=_eligible(state.eligible, isr, minimum))


def resign(
    state: PartitionState, leader: int, epoch: int, minimum: int, *, is_whole: bool
) -> PartitionState | None:
    """The leader of `epoch` stops; None when it leads no more.

    It also leaves the in-sync replicas if there are others. `is_whole` says that its disk has everything it
    flushed; after a failed flush nobody can tell.
    """
    if not _leads(state, leader, epoch):
        return None
    if len(state.isr) == 1:
        return replace(state, leader=NO_LEADER)
    isr = {broker: at for broker, at in state.isr.items() if broker != leader}
    left = {leader: state.isr[leader]} if is_whole else {}
    return replace(
        state, leader=NO_LEADER, isr=isr, eligible=_eligible({**state.eligible, **left}, isr, minimum)
    )


def with_minimum(state: PartitionState, minimum: int) -> PartitionState:
    """The state under a new `min.insync.replicas`, which must be set in the same write."""
    return replace(state, eligible=_eligible(state.eligible, state.isr, minimum))


def _leads(state: PartitionState, leader: int, epoch: int) -> bool:
    return (state.leader, state.leader_epoch) == (leader, epoch)


def _alive(replicas: Directories, live: Directories) -> Directories:
    return {broker: at for broker, at in replicas.items() if live.get(broker) == at}


def _eligible(candidates: Directories, isr: Directories, minimum: int) -> Directories:
    """Of those that have everything committed, the ones to keep note of beside these in-sync replicas.

    None once there are enough: from then on something may be committed without the others.
    """
    if len(isr) >= minimum:
        return {}
    return {broker: at for broker, at in candidates.items() if broker not in isr}
