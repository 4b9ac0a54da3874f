"""AlterPartitionReassignments v0 and v1, ListPartitionReassignments v0, ElectLeaders v1 and v2.

And Millrace's own ElectUnclean v0, which is not listed to clients.

Any broker takes these requests: ZooKeeper holds the replicas, and the leaders complete the reassignments that
begin here (KIP-455). All partitions of a topic change in one write. ElectLeaders elects preferred leaders
only: an unclean election loses messages, so it takes a named replica and a reason (`millrace topics elect`).
Left out: ElectLeaders v0, whose answer has no error for a whole refused request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from millrace.errors import BrokerError, ErrorCode, InvalidRequest
from millrace.wire import admin_messages as messages
from millrace.wire.unclean_election import ElectUncleanRequest, ElectUncleanResponse
from millrace_broker.handlers.table import Call, in_thread, outcome_of, serves
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.reassignments import elect_preferred, elect_unclean, reassign
from millrace_broker.security.rights import CLUSTER, Need, Operation

PartitionResult = tuple[int, ErrorCode, str | None]
"""Number, error code and message of a partition."""
_PREFERRED = 0


@in_thread(
    range(2),
    messages.AlterPartitionReassignmentsRequest,
    messages.AlterPartitionReassignmentsResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
)
def alter_partition_reassignments(
    call: Call[messages.AlterPartitionReassignmentsRequest],
) -> messages.AlterPartitionReassignmentsResponse:
    request, Topic = call.request, messages.AlterPartitionReassignmentsResponse.Topic
    topics = _once((topic.name, [p.partition_index for p in topic.partitions]) for topic in request.topics)
    targets = {
        topic.name: {p.partition_index: p.replicas for p in topic.partitions} for topic in request.topics
    }

    def move(name: str) -> dict[int, BrokerError]:
        return reassign(
            call.broker, name, targets[name], may_change_factor=request.allow_replication_factor_change
        )

    return messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            Topic(
                name=name,
                partitions=tuple(
                    Topic.Partition(partition_index=number, error_code=code, error_message=reason)
                    for number, code, reason in _outcomes(name, numbers, move, "moving replicas of")
                ),
            )
            for name, numbers in topics.items()
        ),
    )


@serves(
    range(1),
    messages.ListPartitionReassignmentsRequest,
    messages.ListPartitionReassignmentsResponse,
    needs=lambda _: [Need(Operation.DESCRIBE, CLUSTER)],
)
def list_partition_reassignments(
    call: Call[messages.ListPartitionReassignmentsRequest],
) -> messages.ListPartitionReassignmentsResponse:
    there, asked = call.broker.cluster.topics, call.request.topics
    wanted: Mapping[str, Iterable[int]] = {name: topic.partitions for name, topic in there.items()}
    if asked is not None:
        wanted = {topic.name: topic.partition_indexes for topic in asked}
    Topic = messages.ListPartitionReassignmentsResponse.Topic
    moving: dict[str, list[messages.ListPartitionReassignmentsResponse.Topic.Partition]] = {}
    for name in sorted(there.keys() & wanted.keys()):
        for number in sorted(there[name].partitions.keys() & set(wanted[name])):
            state = there[name].partitions[number]
            if state.adding or state.removing:
                moving.setdefault(name, []).append(
                    Topic.Partition(
                        partition_index=number,
                        replicas=state.replicas,
                        adding_replicas=tuple(one for one in state.adding if one in state.target),
                        removing_replicas=state.removing,
                    )
                )
    return messages.ListPartitionReassignmentsResponse(
        topics=tuple(Topic(name=name, partitions=tuple(found)) for name, found in moving.items())
    )


@in_thread(
    range(1, 3),
    messages.ElectLeadersRequest,
    messages.ElectLeadersResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
)
def elect_leaders(call: Call[messages.ElectLeadersRequest]) -> messages.ElectLeadersResponse:
    request, there = call.request, call.broker.cluster.topics
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(name, topic.partitions) for name, topic in there.items()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    Topic = messages.ElectLeadersResponse.Topic

    def elect(name: str, numbers: Sequence[int]) -> dict[int, BrokerError]:
        if request.election_type != _PREFERRED:
            raise InvalidRequest(
                "an unclean election takes a replica and a reason: millrace topics elect --unclean"
            )
        return elect_preferred(call.broker, name, numbers)

    results = []
    for name, numbers in _once(wanted).items():
        outcomes = _outcomes(name, numbers, partial(elect, numbers=numbers), "electing the leaders of")
        if request.topic_partitions is None:  # as in Kafka: only partitions that needed an election
            outcomes = [one for one in outcomes if one[1] != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(
            Topic(
                topic=name,
                partition_result=tuple(
                    Topic.Partition(partition_id=number, error_code=code, error_message=reason)
                    for number, code, reason in outcomes
                ),
            )
        )
    found = tuple(result for result in results if result.partition_result)
    return messages.ElectLeadersResponse(replica_election_results=found)


@serves(
    range(1),
    ElectUncleanRequest,
    ElectUncleanResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
    thread=Broker.in_zookeeper_thread,
    private=True,
)
def elect_one_unclean(call: Call[ElectUncleanRequest]) -> ElectUncleanResponse:
    request, client = call.request, call.received.client
    call.broker.check_administrator(client.address)
    elect_unclean(
        call.broker,
        request.topic,
        request.partition,
        request.replica,
        who=f"{client.access.principal} at {client.address}",
        reason=request.reason,
    )
    return ElectUncleanResponse(error_code=ErrorCode.NONE, error_message=None)


def _once(wanted: Iterable[tuple[str, Iterable[int]]]) -> dict[str, list[int]]:
    """Return the partitions of each topic. Raise InvalidRequest when a topic or partition is named twice."""
    topics: dict[str, list[int]] = {}
    for name, numbers in wanted:
        asked = list(numbers)
        if name in topics or len(set(asked)) < len(asked):
            raise InvalidRequest(f"topic {name} or one of its partitions is named twice")
        topics[name] = asked
    return topics


def _outcomes(
    name: str, numbers: Sequence[int], change: Callable[[str], dict[int, BrokerError]], what: str
) -> list[PartitionResult]:
    """Change the partitions of a topic together; return the outcome of each."""
    code, reason, refused = outcome_of(lambda: change(name), f"{what} {name}")
    if refused is None:
        return [(number, code, reason) for number in numbers]
    errors = {number: (error.code, str(error)) for number, error in refused.items()}
    return [(number, *errors.get(number, (ErrorCode.NONE, None))) for number in numbers]
