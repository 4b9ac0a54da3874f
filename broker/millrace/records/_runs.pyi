from collections.abc import Callable, Sequence

from millrace.records.compression import Buffer

def scan(
    data: memoryview,
    position: int,
    head: tuple[bytes, bytes, int],
    tail: bytes,
    largest: int,
    checksum: Callable[[memoryview], int],
) -> tuple[list[int], list[memoryview], int]: ...
def stamp(
    batches: Sequence[Buffer],
    first: int,
    base: int,
    epoch: int,
    room: int,
    marked_room: int,
    least: int,
    stamped: list[tuple[int, int, int, int, int, int, int]] | None,
) -> tuple[list[int], int, int, int, int, int]: ...
def holds_records(content: Buffer, count: int) -> bool: ...
