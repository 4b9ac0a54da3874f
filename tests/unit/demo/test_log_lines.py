"""Lines do not depend on how they arrive; a followed file loses and repeats none, however it is rotated."""

from __future__ import annotations

import gzip
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace_demo.log_lines
from millrace.errors import MillraceError
from millrace_demo.log_lines import (
    MAX_LINE_BYTES,
    Chunk,
    Follower,
    LineSplitter,
    Position,
    RawLine,
    read_lines,
)

CONTENT = b"one\r\n\nthree\n" + b"x" * 50 + b"\nthe last one"
TEXTS = [b"one", b"", b"three", b"x" * 50, b"the last one"]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(millrace_demo.log_lines, "POLL_S", 0)


def texts(chunks: Iterator[Chunk]) -> list[bytes]:
    return [line.text for chunk in chunks for line in chunk.lines]


@pytest.mark.parametrize("cut", range(len(CONTENT) + 1))
def test_lines_do_not_depend_on_where_the_bytes_are_cut(cut: int) -> None:
    splitter = LineSplitter()
    lines = [*splitter.receive(CONTENT[:cut]), *splitter.receive(CONTENT[cut:]), *splitter.end()]
    assert [(line.number, line.text, line.whole) for line in lines] == [
        (number, text, True) for number, text in enumerate(TEXTS, 1)
    ]


@given(st.lists(st.binary(max_size=40)), st.integers(1, 20))
def test_the_lines_are_those_of_the_bytes(pieces: list[bytes], limit: int) -> None:
    splitter = LineSplitter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(millrace_demo.log_lines, "MAX_LINE_BYTES", limit)
        lines = [line for piece in pieces for line in splitter.receive(piece)] + splitter.end()
    *ended, rest = b"".join(pieces).split(b"\n")
    for line, text in zip(lines, [*ended, rest] if rest else ended, strict=True):
        whole = text.removesuffix(b"\r") if len(text) <= limit else text
        assert line == RawLine(line.number, whole[:limit], len(whole))


def test_a_line_without_end_is_held_up_to_a_limit_only() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.receive(b"x" * MAX_LINE_BYTES) == []
    (line,) = splitter.receive(b"\n")
    assert (len(line.text), line.size, line.whole) == (MAX_LINE_BYTES, 100 * MAX_LINE_BYTES, False)


def test_a_zipped_file_is_read_as_its_content_whatever_its_name(tmp_path: Path) -> None:
    for name, content in (
        ("log", CONTENT),
        ("log.gz", gzip.compress(CONTENT)),
        ("log.1", gzip.compress(CONTENT)),
    ):
        (tmp_path / name).write_bytes(content)
        assert texts(read_lines(tmp_path / name)) == TEXTS


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage"])
def test_a_damaged_zipped_file_is_an_error_behind_the_lines_before_the_damage(
    tmp_path: Path, damage: str
) -> None:
    lines = [b"%d" % random.Random(number).getrandbits(256) for number in range(20_000)]
    zipped = bytearray(gzip.compress(b"\n".join(lines)))
    match damage:
        case "cut":
            del zipped[len(zipped) // 2 :]
        case "flipped":
            zipped[len(zipped) // 2] ^= 0xFF
        case "garbage":
            zipped += b"garbage"
    path = tmp_path / "log.gz"
    path.write_bytes(zipped)
    chunks: list[Chunk] = []
    with pytest.raises(MillraceError, match=r"cannot read .*log.gz after line \d+: "):
        chunks.extend(read_lines(path))
    read = texts(iter(chunks))
    assert len(read) > 5_000
    assert damage == "flipped" or read == lines[: len(read)]


class Followed:
    """A file and its follower, until it has nothing to read for a while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: list[bytes] = []
        self.position: Position | None = None
        self.chunks: Iterator[Chunk] = iter(())

    def restart(self) -> None:
        self.chunks = Follower(self.path, self.position, itertools.count().__next__).chunks()

    def catch_up(self) -> None:
        while True:
            chunk = next(self.chunks)
            self.read += [line.text for line in chunk.lines]
            self.position = chunk.position or self.position
            if chunk.caught_up:
                return

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def rotate(self) -> None:
        for number in range(8, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            if older.exists():
                older.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
        if self.path.exists():
            self.path.rename(self.path.with_name(f"{self.path.name}.1"))


STEPS = st.lists(st.sampled_from(["line", "half", "rotate", "restart", "read"]), max_size=25)


@given(steps=STEPS)
def test_a_followed_file_gives_each_line_once_through_rotations_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """A restart goes on from the last whole line: what was written of the next one is read again."""
    followed = Followed(tmp_path_factory.mktemp("log") / "access.log")
    written, mtime = b"", 0
    followed.write(b"")
    os.utime(followed.path, (0, 0))
    followed.restart()
    followed.catch_up()
    for number, step in enumerate(steps):
        match step:
            case "line" | "half":
                text = b"%d" % number + (b"\n" if step == "line" else b"~")
                followed.write(text)
                written += text
                mtime += 1
                os.utime(followed.path, (mtime, mtime))
            case "rotate":
                if not written.endswith(b"~"):  # a writer that reopens its log has ended its line
                    followed.rotate()
                    followed.write(b"")
                    mtime += 1
                    os.utime(followed.path, (mtime, mtime))
            case "restart":
                if followed.position is not None:
                    followed.restart()
            case "read":
                followed.catch_up()
    followed.catch_up()
    assert followed.read == written.split(b"\n")[:-1]


def test_what_is_written_to_a_renamed_file_is_read_before_the_new_one(tmp_path: Path) -> None:
    followed = Followed(tmp_path / "access.log")
    followed.write(b"a\n")
    followed.restart()
    followed.catch_up()
    with followed.path.open("ab") as old:
        followed.rotate()
        followed.write(b"new\n")
        assert next(followed.chunks).lines == ()
        old.write(b"late\n")
    followed.catch_up()
    assert followed.read == [b"a", b"late", b"new"]


def test_a_file_cut_by_copytruncate_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    followed = Followed(tmp_path / "access.log")
    followed.write(b"a\nb\n")
    followed.restart()
    followed.catch_up()
    os.truncate(followed.path, 0)
    followed.write(b"c\n")
    followed.catch_up()
    assert followed.read == [b"a", b"b", b"c"]
    os.truncate(followed.path, 0)
    followed.write(b"longer\nthan before\n")
    followed.catch_up()
    assert followed.read == [b"a", b"b", b"c", b"longer", b"than before"], "it outgrew the old end"


def test_a_position_whose_file_is_gone_is_said_and_another_inode_is_not_mistaken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed = Followed(tmp_path / "access.log")
    followed.write(b"a\n")
    followed.restart()
    followed.catch_up()
    assert followed.position is not None
    followed.path.write_bytes(b"A\nb\n")  # the same inode, other bytes
    followed.restart()
    followed.catch_up()
    assert followed.read == [b"a", b"A", b"b"]
    assert "lines between may be missing" in caplog.text


def test_a_position_is_kept_whole_and_a_file_that_holds_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "position"
    assert Position.load(path) is None
    position = Position(1, 2, 3, 4, "6162")
    position.save(path)
    assert Position.load(path) == position
    for text in ("", "[]", "{}", '{"device": 1}'):
        path.write_text(text)
        with pytest.raises(MillraceError, match="--position"):
            Position.load(path)
    with pytest.raises(MillraceError, match="cannot be written"):
        position.save(tmp_path / "nowhere" / "position")
