"""Changes of a partition's leader and in-sync replicas, as functions from one state to the next.

Each change is made with one compare-and-set of the topic's node in ZooKeeper. It is safe whichever broker
makes it, and however late: its conditions are checked here, not by the caller. A result of None means that
the change is not allowed, or no longer.

`live` has the registered brokers, and the id of the log directory that each of them uses now. A broker whose
disk was lost comes back with another id, so it is not the replica that the state names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, Replicas, Report

Directories = Mapping[int, str]
"""Broker -> the id of its log directory."""
UNKNOWN_EPOCHS = 100_000
"""Number of epochs larger than a partition can have had between a backup of ZooKeeper and its restore."""


def has_live_leader(state: PartitionState, live: Directories) -> bool:
    """Return True if the leader is registered, with the directory that holds its copy."""
    leader = state.leader
    return leader in live and live[leader] == state.isr.get(leader)


def may_lead(state: PartitionState, broker: int, directory: str, live: Directories) -> bool:
    """Return True for an in-sync replica, and for an eligible one while no in-sync replica lives.

    Both have flushed everything that was ever committed. After ZooKeeper was restored from an older copy the
    in-sync replicas are unknown. Then all replicas report, and the longest log has everything.
    """
    if state.reports:
        return _has_longest_log(state, broker, directory)
    if state.isr.get(broker) == directory:
        return True
    return state.eligible.get(broker) == directory and not _alive(state.isr, live)


def elect(
    state: PartitionState, broker: int, directory: str, live: Directories, minimum: int
) -> PartitionState | None:
    """Return the state in which `broker` leads, in a new epoch, from the end of its log on; None unless it
    may lead.

    The length of its log does not matter. A leader may die before its in-sync replicas have flushed the log
    that it had at the start of its epoch. Then it has committed nothing, and each of them must be able to
    lead.
    """
    if not may_lead(state, broker, directory, live):
        return None
    led = replace(state, leader=broker, leader_epoch=state.leader_epoch + 1, reports={})
    if state.reports:  # the same last epoch and end mean the same log
        own = state.reports[broker]
        equal = {one: other.directory for one, other in state.reports.items() if other[1:] == own[1:]}
        return replace(led, isr={**_alive(equal, live), broker: directory}, eligible={})
    isr = {broker: directory}
    if broker in state.isr:
        isr |= {other: at for other, at in _alive(state.isr, live).items() if other != state.leader}
    return replace(led, isr=isr, eligible=_eligible({**state.eligible, **state.isr}, isr, minimum))


def report(state: PartitionState, broker: int, report: Report) -> PartitionState | None:
    """Return the state of a restored ZooKeeper with the report of one replica's log; None if the state has
    the report already.

    The partition has no leader until all replicas have reported. The next epoch is above that of any log,
    even the log of a broker that is no replica in the older copy.
    """
    if broker not in state.replicas or state.reports.get(broker) == report:
        return None
    known = state.leader_epoch if state.reports else state.leader_epoch + UNKNOWN_EPOCHS
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=max(known, report.last_epoch),
        reports={**state.reports, broker: report},
    )


def shrink(
    state: PartitionState, leader: int, epoch: int, gone: Collection[int], minimum: int
) -> PartitionState | None:
    """Return the state in which the leader of `epoch` has dropped the replicas `gone`.

    None if it no longer leads, or none of them was in sync.
    """
    isr = {broker: at for broker, at in state.isr.items() if broker not in gone or broker == leader}
    if not _leads(state, leader, epoch) or len(isr) == len(state.isr):
        return None
    removed = {broker: at for broker, at in state.isr.items() if broker not in isr}
    return replace(state, isr=isr, eligible=_eligible({**state.eligible, **removed}, isr, minimum))


def expand(
    state: PartitionState, leader: int, epoch: int, joining: Directories, minimum: int
) -> PartitionState | None:
    """Return the state in which the leader of `epoch` has added in-sync replicas; None when it no longer
    leads, or none may be added.

    A broker that is in sync under another directory must be removed first: its entry still means bytes that
    may be lost, and only the removal makes the leader stop counting them.
    """
    new = {b: at for b, at in joining.items() if b in state.replicas and b not in state.isr}
    if not _leads(state, leader, epoch) or not new:
        return None
    isr = {**state.isr, **new}
    return replace(state, isr=isr, eligible=_eligible(state.eligible, isr, minimum))


def resign(
    state: PartitionState, leader: int, epoch: int, minimum: int, *, is_whole: bool
) -> PartitionState | None:
    """Return the state in which the leader of `epoch` has resigned; None when it no longer leads.

    It also leaves the in-sync replicas if there are other in-sync or eligible replicas: these have everything
    committed, and could not lead as long as its broker lives. `is_whole` is True if its disk has everything
    that it flushed; after a failed flush that is unknown.
    """
    if not _leads(state, leader, epoch):
        return None
    isr = {broker: at for broker, at in state.isr.items() if broker != leader} or dict(state.eligible)
    if not isr:
        return replace(state, leader=NO_LEADER)
    left = {leader: state.isr[leader]} if is_whole else {}
    return replace(
        state, leader=NO_LEADER, isr=isr, eligible=_eligible({**state.eligible, **left}, isr, minimum)
    )


def depose(state: PartitionState, leader: int, epoch: int, minimum: int) -> PartitionState | None:
    """Return the state without the leader of `epoch`, which lacks committed messages and has not served yet.

    Any replica may depose it. Return None when that leader no longer leads, or no other replica is in sync or
    eligible.
    """
    if not state.eligible and len(state.isr) == 1:
        return None
    return resign(state, leader, epoch, minimum, is_whole=False)


def assign(state: PartitionState, target: Replicas, live: Directories, minimum: int) -> PartitionState | None:
    """Return the partition on its way to the replicas `target`; None when its only replica does not serve.

    Its present replicas stay until the leader calls `finish`, and a target replaces the target before. A
    target of the original replicas is a cancellation, whatever targets there were: `adding` names all other
    replicas. `minimum` is the minimum of the resulting state.
    """
    if not state.is_replicated and target != state.replicas:
        # The directory of an only replica is not recorded. It continues to lead only as one of several, in a
        # new epoch.
        (broker,) = state.replicas
        if broker not in live or state.leader == NO_LEADER:
            return None
        state = replace(state, leader=NO_LEADER, isr={broker: live[broker]})
    before = [broker for broker in state.replicas if broker not in state.adding]
    going = tuple(broker for broker in state.replicas if broker not in target)
    return replace(
        with_minimum(state, minimum),
        replicas=target + going,
        adding=tuple(broker for broker in target + going if broker not in before),
        removing=going,
    )


def finish(state: PartitionState, leader: int, epoch: int, minimum: int) -> PartitionState | None:
    """Return the state in which the leader of `epoch` has ended a reassignment; None when it no longer leads,
    or it is too early.

    It is too early until all added replicas are in sync, and while fewer than the minimum are in sync and the
    end would remove a replica that has everything committed. A leader that is no longer a replica resigns.
    `minimum` is the minimum of the target.
    """
    target = state.target
    isr = {broker: at for broker, at in state.isr.items() if broker in target}
    eligible = {broker: at for broker, at in state.eligible.items() if broker in target}
    is_enough = len(isr) >= minimum or (isr, eligible) == (state.isr, state.eligible)
    if not (_leads(state, leader, epoch) and (state.adding or state.removing)):
        return None
    if not is_enough or any(broker not in isr for broker in state.adding if broker in target):
        return None
    done = replace(
        state,
        leader=leader if leader in target else NO_LEADER,
        replicas=target,
        isr=isr,
        eligible=_eligible(eligible, isr, minimum),
        adding=(),
        removing=(),
    )
    if len(target) == 1:  # an only replica does not campaign: it leads at once
        return replace(done, leader=target[0], leader_epoch=epoch + (leader != target[0]))
    return done


def prefer(state: PartitionState, live: Directories) -> PartitionState | None:
    """Return the state without a leader, so that the first replica leads next; None unless that replica is
    alive, in sync and not leading.

    Any broker may do so: the leader sees the change. The leader stays in sync: everything that it commits
    until then is flushed by all in-sync replicas.
    """
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in _alive(state.isr, live):
        return None
    return replace(state, leader=NO_LEADER)


def unclean(state: PartitionState, broker: int, live: Directories) -> PartitionState | None:
    """Return the state in which `broker` may elect itself although it may lack committed messages; None if
    that is not needed.

    It is not needed while a live replica may lead without a loss, and does not help unless `broker` is a live
    replica. Bytes of other replicas beyond its log are cut. An only replica leads at once, if it waits for
    this.
    """
    if broker not in state.replicas or broker not in live:
        return None
    if not state.is_replicated:
        waits = state.leader == NO_LEADER
        return replace(state, leader=broker, leader_epoch=state.leader_epoch + 1) if waits else None
    if any(may_lead(state, other, at, live) for other, at in live.items()):
        return None
    return replace(state, leader=NO_LEADER, isr={broker: live[broker]}, eligible={}, reports={})


def with_minimum(state: PartitionState, minimum: int) -> PartitionState:
    """Return the state under a new `min.insync.replicas`, which must be set in the same write."""
    return replace(state, eligible=_eligible(state.eligible, state.isr, minimum))


def _leads(state: PartitionState, leader: int, epoch: int) -> bool:
    return (state.leader, state.leader_epoch) == (leader, epoch)


def _has_longest_log(state: PartitionState, broker: int, directory: str) -> bool:
    """Return True once all replicas have reported, and no log is longer than this replica's."""
    own = state.reports.get(broker)
    if own is None or own.directory != directory or any(one not in state.reports for one in state.replicas):
        return False
    return all(other[1:] <= own[1:] for other in state.reports.values())


def _alive(replicas: Directories, live: Directories) -> Directories:
    return {broker: at for broker, at in replicas.items() if live.get(broker) == at}


def _eligible(candidates: Directories, isr: Directories, minimum: int) -> Directories:
    """Return the candidates, which have everything committed, to be recorded as eligible beside these in-sync
    replicas.

    Return none once enough replicas are in sync: from then on messages may be committed without the
    candidates.
    """
    if len(isr) >= minimum:
        return {}
    return {broker: at for broker, at in candidates.items() if broker not in isr}
