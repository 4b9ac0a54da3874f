"""ReplicaFetch v0 and ReplicaAck v0, which are not listed to clients: brokers copy their leaders' logs.

ReplicaFetch answers with slices of the log's files, or waits until any partition that the follower has named
over this connection has news. ReplicaAck has no answer. With an authorizer both require the right
ClusterAction, which only brokers have. Either may name 20,000 partitions, which cost the loop 0.14 s.
Therefore a body is decoded only once the sender may be a broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import ClusterAuthorizationFailed, ErrorCode
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import INT16, INT32
from millrace.wire.replica import Copied, decode_ack, decode_fetch, encode_answer
from millrace_broker.handlers.table import Api, Services
from millrace_broker.security.rights import CLUSTER, Need, Operation, Refused
from millrace_broker.server.request import Request

_V0 = range(1)


def _needs(_: object) -> list[Need]:
    return [Need(Operation.CLUSTER_ACTION, CLUSTER)]


def _check_listener(services: Services, request: Request) -> None:
    listener = services.broker.config.replica_listener
    if listener and request.client.listener_name != listener:
        raise ClusterAuthorizationFailed(f"brokers copy through the listener {listener} only")


def _fetch(services: Services, request: Request, body: memoryview, _: Refused) -> None:
    _check_listener(services, request)
    asked = decode_fetch(body)

    def answer(copied: Sequence[Copied]) -> None:
        for one in copied:
            if one.error:
                request.failed(one.error)
        request.answer(encode_answer(ErrorCode.NONE, copied))

    services.broker.replicas.fetch(request.client, asked, answer)
    request.client.copies()


def _ack(services: Services, request: Request, body: memoryview, _: Refused) -> None:
    _check_listener(services, request)
    services.broker.replicas.acknowledged(decode_ack(body))
    request.answer_nothing()


REPLICA_FETCH = Api(
    key=ApiKey.REPLICA_FETCH,
    private_versions=_V0,
    decode=lambda request: request.body,
    needs=_needs,
    handle=_fetch,
    refusal=lambda _version, code, _reason, _asked: INT16.pack(code) + INT32.pack(0),
)
REPLICA_ACK = Api(
    key=ApiKey.REPLICA_ACK,
    private_versions=_V0,
    decode=lambda request: request.body,
    needs=_needs,
    handle=_ack,
    refusal=lambda *_: None,
)
