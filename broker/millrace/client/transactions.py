"""The committed records of a fetch answer, also where Apache Kafka has transactions.

The broker sends every batch up to the first open transaction, and lists the aborted transactions among them
by producer and first offset. Millrace's own brokers take no transactional batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.errors import MillraceError
from millrace.records import BatchHeader, split_batches
from millrace.wire.fetch import FetchedPartition, error_name


class AbortedTransactions:
    """The aborted transactions of an answer; a Millrace origin has none."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._ahead = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def drops(self, header: BatchHeader) -> bool:
        """Return True for a data batch of an aborted transaction.

        Must be called for every batch, in order.
        """
        while self._ahead and self._ahead[-1][1] <= header.last_offset:
            self._open.add(self._ahead.pop()[0])
        if header.is_control:
            self._open.discard(header.producer_id)  # the marker that ends the transaction
            return False
        return header.is_transactional and header.producer_id in self._open


def batches_from(
    fetched: FetchedPartition, offset: int, name: str | None = None
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Yield (header, batch, True if it holds committed records) of each batch that ends after `offset`.

    A fetch inside a batch returns the whole batch. Raise CorruptMessage when a batch is damaged. Raise
    MillraceError, with the partition's name, when the answer is an error.
    """
    if name is not None and fetched.error:
        raise MillraceError(f"{name} cannot be read at {offset}: {error_name(fetched.error)}")
    aborted = AbortedTransactions(fetched.aborted_transactions)
    for header, batch in split_batches(fetched.records):
        dropped = aborted.drops(header)  # must see every batch
        if header.next_offset > offset:
            yield header, batch, not (dropped or header.is_control)
