"""Ends up to which the partitions of a tier are counted, read from the records of its counts topic.

A reader keeps no state of its own: when it begins, it finds here the offsets at which to continue. The
auditor follows the same rules. Recent records are read first. The records of the last turn are enough if they
name every partition.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.errors import MillraceError
from millrace.records import Cursor
from millrace.wire.fetch import error_name
from millrace_audit.reader.partition import PartitionKey
from millrace_audit.reports.batches import messages_of
from millrace_audit.reports.messages import NOTHING, AuditCodec, Count, Heartbeat
from millrace_audit.reports.turns import TurnBook

ALL_POSITIONS_S = 600.0
"""A heartbeat names every partition at least this often, so that a new reader need not read further back."""
_LOOK_BACK_S = (2 * ALL_POSITIONS_S, 24 * 3600.0)
_FETCH_BYTES = 8 << 20
_WAIT_MS = 500

Ends = dict[PartitionKey, Cursor]
"""Partition -> next offset to count, and the leader epoch before it. A fetch with the epoch shows whether the
log was cut back since."""


def covered(
    client: ClusterClient,
    topic: str,
    tier: str,
    codec: AuditCodec,
    book: TurnBook,
    own: int,
    before: int | None,
    partitions: Collection[PartitionKey],
) -> Ends:
    """Return the next offset to count of each partition, without partitions that were never counted.

    `own` is the caller's turn, which has published its first heartbeat: after it no other turn's records
    count. `before` is the turn before it, None when there is none. Raise MillraceError when the topic does
    not show that heartbeat.
    """
    end, met = client.list_offsets(topic, LATEST, [0])[0], False

    def before_own(start: int) -> Iterator[tuple[int, Count | Heartbeat]]:
        nonlocal met
        for turn, record in _records(client, topic, tier, codec, book, start, end):
            if met := turn == own:
                return
            yield turn, record

    for seconds in _LOOK_BACK_S:
        start = client.list_offsets(topic, int((time.time() - seconds) * 1000), [0])[0]
        # A record of an older turn may come late, and a newer turn's record that ends it precede `start`.
        ends = _follow((turn, record) for turn, record in before_own(start) if turn == before)
        if met and ends and ends.keys() >= set(partitions):  # a listing may lack some
            return ends
    ends = _follow(before_own(client.list_offsets(topic, EARLIEST, [0])[0]))
    if not met:  # other readers' last counts may be missing, too: this reader's counts would leave a hole
        raise MillraceError(
            f"{topic}-0 of {client.bootstrap} does not return a record that was just acknowledged: an open"
            " transaction hides it, or the partition's leader is stale"
        )
    return ends


def _follow(records: Iterable[tuple[int, Count | Heartbeat]]) -> Ends:
    """Return the counted ends by records in order.

    A vanished partition keeps its end, because the partition may come back.
    """
    ends: Ends = {}
    newest, beaten = -1, (-1, -1)
    for turn, record in records:
        if turn < newest:
            continue  # its turn is over
        newest = turn
        if isinstance(record, Count):
            key = PartitionKey(record.topic_id, record.partition)
            if ends.setdefault(key, Cursor(record.start)).next_offset == record.start:
                ends[key] = Cursor(record.end, epoch=record.leader_epoch)
            continue
        if record.time != NOTHING:  # otherwise any reader of the turn may have sent it
            if (turn, record.number) <= beaten:
                continue  # the heartbeat is sent again
            beaten = (turn, record.number)
        for position in record.positions:
            if position.offset is not None:
                key = PartitionKey(position.topic_id, position.partition)
                # Everything before the position is counted, in counts that may have expired from the topic.
                if key not in ends or ends[key].next_offset < position.offset:
                    ends[key] = Cursor(position.offset, epoch=position.leader_epoch)
        for log in record.truncated:
            key = PartitionKey(log.topic_id, log.partition)
            if key in ends and ends[key].next_offset == log.counted:
                ends[key] = Cursor(log.end)
    return ends


def _records(
    client: ClusterClient, topic: str, tier: str, codec: AuditCodec, book: TurnBook, start: int, end: int
) -> Iterator[tuple[int, Count | Heartbeat]]:
    """Yield counts and heartbeats that readers of the tier have signed in [start, end), each
    with its turn.
    """
    while start < end:
        fetched = client.fetch(topic, {0: start}, max_bytes=_FETCH_BYTES, max_wait_ms=_WAIT_MS)[0]
        if fetched.error:
            raise MillraceError(
                f"{topic}-0 of {client.bootstrap} cannot be read at {start}: {error_name(fetched.error)}; see"
                " the broker's log"
            )
        before = start
        for header, batch, readable in batches_from(fetched, start):
            for message in messages_of(header, batch) if readable else ():
                turn = book.signed(tier, message.key, message.value, before)
                record = codec.decode(message.value) if turn is not None else None
                if turn is not None and isinstance(record, Count | Heartbeat):
                    yield turn, record
            start = header.next_offset
        if start == before:
            return  # the rest is no batch, or not committed yet
