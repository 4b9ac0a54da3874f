"""Check, in the cluster's audit topic, that no other agent uses a copy of this spool.

Two copies of a spool have the same next instance and, for each instance that has not ended, the same key for
its next report. The first hello or report with such an instance or key in the topic decides: its agent
continues, and the other agent must not send. An agent that may not read the topic must not send either. The
check depends neither on events nor on the spool's tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.client.cluster_client import ClusterClient
from millrace.client.transactions import batches_from
from millrace.errors import ErrorCode, MillraceError
from millrace.records.messages import write_varint
from millrace_agent.spool import Spool, SpooledInstance
from millrace_audit.answer import iso
from millrace_audit.reports.batches import messages_of
from millrace_audit.reports.messages import AUDIT_TOPIC, AuditCodec, Hello, Report

_FETCH_BYTES = 8 << 20
_TIMEOUT_S = 5.0
_CLOCKS_MS = 3_600_000
"""Upper bound of the difference between the clocks of two machines."""


class SpoolCopied(MillraceError):
    """Another agent uses a copy of the spool. This agent must send nothing."""


class Claim:
    """One process's right to use its spool. Must be used by one thread."""

    def __init__(
        self,
        bootstrap: str,
        codec: AuditCodec,
        spool: Spool,
        mine: SpooledInstance,
        left: Sequence[SpooledInstance],
    ) -> None:
        """Prepare the check; `left` are the instances of earlier processes that have not ended."""
        self._bootstrap, self._codec, self._spool = bootstrap, codec, spool
        self._offset = spool.audit_offset  # of a message older than any copy's
        self._own: set[bytes] = set()
        # An instance's hello and first report hold its number; a report holds its key.
        self._awaited = {bytes(_varint(mine.instance)): mine.instance}
        self._awaited |= {one.key: one.instance for one in left if one.hellos and not one.ended}

    @property
    def is_proven(self) -> bool:
        """True once this process's messages are known to be first in the topic: other agents find them."""
        return not self._awaited

    def note(self, message: bytes) -> None:
        """Note a message that this process is about to publish."""
        if self._awaited:
            self._own.add(message)

    def check(self) -> None:
        """Read the topic's new messages. Raise SpoolCopied if another agent's message comes first.

        Raise MillraceError if the agent may not read the topic, even while the topic is empty.
        """
        if not self._awaited:
            return
        with ClusterClient(self._bootstrap, timeout_s=_TIMEOUT_S) as client:
            if self._offset is None:
                since = client.list_offsets(AUDIT_TOPIC, self._spool.created - _CLOCKS_MS, [0])
                self._offset = since[0]
            start, end = client.bounds(AUDIT_TOPIC, 0)
            if not start <= self._offset <= end:  # expired, or of a topic that was recreated
                self._offset = start
            self._read(client, self._offset, end)
            while self._awaited and self._offset < end:
                self._read(client, self._offset, end)

    def _read(self, client: ClusterClient, offset: int, end: int) -> None:
        fetched = client.fetch(
            AUDIT_TOPIC, {0: offset}, max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, max_wait_ms=0
        )[0]
        where = f"{AUDIT_TOPIC}-0 of {self._bootstrap}"
        if fetched.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise MillraceError(
                f"this agent sends nothing, because it may not read topic {AUDIT_TOPIC} and so cannot notice"
                " another agent with a copy of its spool: grant the right with `millrace acls allow"
                f" User:NAME read --topic {AUDIT_TOPIC} --bootstrap {self._bootstrap}`"
            )
        for header, batch, readable in batches_from(fetched, offset, where):
            for message in messages_of(header, batch) if readable else ():
                self._look_at(message.value)
            self._offset = header.next_offset
        if self._awaited and self._offset == offset < end:
            raise MillraceError(f"{where} returns no messages at offset {offset}")

    def _look_at(self, value: bytes) -> None:
        for sign in [sign for sign in self._awaited if sign in value]:
            if value in self._own:
                del self._awaited[sign]
                continue
            record = self._codec.decode(value)
            if isinstance(record, Hello | Report) and record.instance == self._awaited[sign]:
                raise SpoolCopied(
                    f"the spool {self._spool.folder} is an older copy: another agent ({record.service} on"
                    f" {record.server}) has continued with it at {iso(record.time)}, as instance"
                    f" {record.instance}; start this one with an empty --spool, or have what waits in the"
                    " copy sent, perhaps a second time: `millrace agent ... --adopt-copy`"
                )


def _varint(number: int) -> bytearray:
    out = bytearray()
    write_varint(out, number)
    return out
