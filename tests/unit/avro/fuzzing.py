"""Damaged messages by the thousand through both decoders, in a process of its own so that a crash is seen.

    python -m tests.unit.avro.fuzzing [--messages 1000000] [--seed 1]

Of every message both decoders must say the same: the same row, or no row; and an accepted one must be what
fastavro reads from the same bytes. Messages that are whole must survive beside damaged ones. Ends with one
JSON line, or with an AssertionError that holds the seed of the round. Memory is limited: a message may not
make the process grow past MEMORY_BYTES.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from millrace.records import HEADER_BYTES, BatchHeader, Message, build_batch
from millrace_avro.rows import RowDecoder
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.log.messages import Decoder, body_decoder
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches
from tests.unit.avro.avro_cases import comparable, encode, in_one_buffer, record, rows_of, shown, table_record
from tests.unit.avro.fuzz_cases import SCHEMAS, Case

ROWS = 250
BATCH = 20
MEMORY_BYTES = 3 << 30
_NASTY = [
    b"\xff" * 10,
    b"\xff" * 9 + b"\x01",
    b"\xfe" + b"\xff" * 8 + b"\x01",
    b"\x80" * 9 + b"\x02",
    b"\x80" * 10 + b"\x01",
    b"\xff" * 11 + b"\x01",
    b"\x80" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\x01",
    b"\x03",
    b"\x00",
    b"\x80\x00",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01",
]


def _flip(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    if body:
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)


def _set(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    if body:
        body[dice.randrange(len(body))] = dice.randrange(256)


def _cut(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    del body[dice.randrange(len(body) + 1) :]


def _lose(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    at = dice.randrange(len(body) + 1)
    del body[at : at + dice.randint(1, 4)]


def _append(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    body += dice.randbytes(dice.randint(1, 12))


def _splice(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    other = dice.choice(others)
    body[dice.randrange(len(body) + 1) :] = other[dice.randrange(len(other) + 1) :]


def _repeat(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    at = dice.randrange(len(body) + 1)
    body[at:at] = body[at : at + dice.randint(1, 30)]


def _tamper(body: bytearray, dice: random.Random, others: Sequence[bytes]) -> None:
    """A number that is huge, negative, too long or no number in place of some bytes."""
    at, nasty = dice.randrange(len(body) + 1), dice.choice(_NASTY)
    body[at : at + dice.choice((0, 1, len(nasty)))] = nasty


MUTATIONS: list[Callable[[bytearray, random.Random, Sequence[bytes]], None]] = [
    _flip,
    _set,
    _cut,
    _lose,
    _append,
    _splice,
    _repeat,
    _tamper,
    _tamper,
]


def mutated(body: bytes, dice: random.Random, others: Sequence[bytes]) -> bytes:
    """The body with some damage; rarely what comes out is whole again."""
    damaged = bytearray(body)
    for _ in range(dice.choice((1, 1, 1, 1, 2, 5))):
        dice.choice(MUTATIONS)(damaged, dice, others)
    return bytes(damaged)


class Target:
    """One pair of schemas: the decoders, and some messages that are whole."""

    def __init__(self, case: Case, dice: random.Random) -> None:
        self.name, self.case = case.name, case
        self.writer, self.table = record(case.writer), table_record(case.table)
        self.main, self.rows = body_decoder(self.writer, self.table), RowDecoder(self.writer, self.table)
        self.by_columns = isinstance(self.main, ColumnDecoder)
        self.parsed = fastavro.parse_schema(case.writer)
        self.whole = [encode(case.writer, case.value(dice)) for _ in range(ROWS)]

    def round(self, dice: random.Random, counts: Counter[str]) -> None:
        """ROWS messages at once, some of them damaged."""
        share = dice.choice((0.02, 0.5, 1, 1, 1))
        bodies = list(self.whole)
        damaged = [index for index in range(ROWS) if dice.random() < share]
        for index in damaged:
            bodies[index] = mutated(bodies[index], dice, self.whole)
        columns, faults = self.main.decode(*in_one_buffer(bodies))
        assert not set(faults.reasons) - set(damaged), "a whole message was rejected"
        assert sorted(faults.reasons) == np.flatnonzero(faults.bad).tolist()
        if self.by_columns:
            again, other = self.rows.decode(*in_one_buffer(bodies))
            differ = np.flatnonzero(faults.bad != other.bad)
            assert not len(differ), (
                bodies[differ[0]],
                faults.reasons.get(differ[0]),
                other.reasons.get(differ[0]),
            )
            for name, one, two in zip(self.table.fields, columns, again, strict=True):
                one.validate(full=True)
                assert _same(one, two), name
        good = np.flatnonzero(~faults.bad).tolist()
        self._compare_with_fastavro(columns, bodies, good, set(damaged))
        counts["messages"] += len(damaged)
        counts["accepted"] += len(set(good) & set(damaged))
        counts[self.name] += len(damaged)

    def _compare_with_fastavro(
        self, columns: list[pa.Array], bodies: list[bytes], good: list[int], damaged: set[int]
    ) -> None:
        looked_at = [at for at, index in enumerate(good) if index in damaged]
        if self.case.writer is not self.case.table or not looked_at:
            return
        taken = [column.take(pa.array(looked_at)) for column in columns]
        expected = [shown(self.table, self._fastavro(bodies[good[at]])) for at in looked_at]
        assert comparable(rows_of(taken, self.case.table)) == comparable(expected)

    def _fastavro(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        read = fastavro.schemaless_reader(stream, self.parsed, None)
        assert stream.tell() == len(body), "fastavro leaves bytes of a message that was accepted"
        return read

    def batch_round(self, dice: random.Random, counts: Counter[str]) -> None:
        """Some batches whose records, framing included, are damaged behind a correct CRC; nothing is lost."""
        batches = []
        for number in range(3):
            bodies = [b"\0\0\0\0\1" + dice.choice(self.whole) for _ in range(BATCH)]
            raw = build_batch([Message(0, None, body) for body in bodies], base_offset=number * BATCH)
            records = (
                mutated(raw[HEADER_BYTES:], dice, [raw[HEADER_BYTES:]]) if number else raw[HEADER_BYTES:]
            )
            header = BatchHeader.parse(raw)
            assert header is not None
            batches.append((header, memoryview(raw[:HEADER_BYTES] + records)))
        cut = cut_ranges([Range("T", 0, 0, 1 << 40)], 1 << 50)[0]
        stats, decoder = RangeStats.for_cut(cut), Decoder(self.case.table, {1: self.case.writer}.get)
        rows = tombstones = rejected = 0
        for decoded in decoder.decode(cut, [FetchedBatches(batches)], stats):
            decoded.rows.validate(full=True)
            rows += decoded.rows.num_rows
            tombstones += 0 if decoded.tombstones is None else decoded.tombstones.num_rows
            rejected += sum(each.records for each in decoded.rejected)
            assert all(each.reason and (each.raw or each.records == 1) for each in decoded.rejected)
        assert rows + tombstones + rejected == stats.records == 3 * BATCH
        assert rows >= BATCH, "the batch that is whole lost records"
        counts["batches"] += 2


def _same(one: pa.Array, two: pa.Array) -> bool:
    if pa.types.is_floating(one.type):  # no number is equal to itself otherwise
        return one.is_null().equals(two.is_null()) and np.array_equal(
            one.to_numpy(zero_copy_only=False), two.to_numpy(zero_copy_only=False), equal_nan=True
        )
    return bool(one.equals(two))


def fuzz(messages: int, seed: int) -> Counter[str]:
    """Damage that many messages; what was done, by schema."""
    counts: Counter[str] = Counter()
    targets = [Target(case, random.Random(f"{seed} {case.name}")) for case in SCHEMAS]
    number = 0
    while counts["messages"] < messages:
        for target in targets:
            number += 1
            place = f"seed {seed}, {target.name}, round {number}"
            try:
                target.round(random.Random(f"{seed} {number}"), counts)
                if number % 5 == 0:
                    target.batch_round(random.Random(f"{seed} {number}"), counts)
            except Exception as error:
                raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
    return counts


def main() -> None:
    """Fuzz; print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    counts = fuzz(options.messages, options.seed)
    counts["cpu_s"] = round(time.process_time())
    counts["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
