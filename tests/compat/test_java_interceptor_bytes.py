"""Bytes of the Java interceptor beside Python's: fingerprints, record headers and ranges."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace
from millrace.zookeeper.embedded import find_java
from tests.compat.java_interceptor import compile_programs, jar, package_jar
from tests.support import REPOSITORY, ROUNDS, start_for_the_test_run

SEQUENCES = st.sets(st.integers(0, 300) | st.integers(0, 2**63 - 1), max_size=200)
Ask = Callable[[str], str]


@pytest.fixture(scope="module")
def ask(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    path = compile_programs(tmp_path_factory.mktemp("classes"))
    command = [find_java(), "-Xmx256m", "-cp", path, "io.millrace.audit.Bytes"]
    with start_for_the_test_run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        stdin, stdout = java.stdin, java.stdout

        def answer(job: str) -> str:
            stdin.write(job + "\n")
            stdin.flush()
            line = stdout.readline()
            assert line, f"no answer to {job}"
            return str(line).rstrip("\n")

        yield answer
        java.kill()


@settings(max_examples=20 * ROUNDS)
@given(st.binary(max_size=200), st.integers(0, 2**63 - 1))
def test_a_fingerprint_is_xxh64_seeded_with_the_sequence(ask: Ask, value: bytes, sequence: int) -> None:
    assert int(ask(f"xxh64 {sequence} {value.hex()}")) % 2**64 == xxhash.xxh64_intdigest(value, sequence)


@settings(max_examples=20 * ROUNDS)
@given(st.permutations(range(40)), SEQUENCES)
def test_ranges_hold_exactly_the_sequences(ask: Ask, small: list[int], sequences: set[int]) -> None:
    for chosen in (small[:20], sorted(sequences, key=hash)):
        words = ask("ranges " + " ".join(map(str, chosen))) if chosen else ""
        ranges = [tuple(map(int, word.split("-"))) for word in words.split()]
        assert {n for first, last in ranges for n in range(first, last + 1)} == set(chosen)
        assert all(first - last > 1 for (_, last), (first, _) in pairwise(ranges))


@pytest.mark.parametrize(
    ("timeouts", "seconds"),
    [
        ("", 60 + 120 + 10),
        ("max.block.ms 5000 delivery.timeout.ms 30000", 5 + 30 + 10),
        ("request.timeout.ms 300000 linger.ms 1000", 60 + 301 + 10),
        (f"max.block.ms {2**63 - 1} delivery.timeout.ms {2**31 - 1}", 2 * (2**31 - 1) / 1000 + 10),
    ],
)
def test_a_client_has_given_up_on_an_event_when_its_timeouts_are_over(
    ask: Ask, timeouts: str, seconds: float
) -> None:
    """Kafka's client raises the default delivery timeout to the sum of linger and request timeout."""
    assert int(ask(f"settledAfterMs {timeouts}".rstrip())) == seconds * 1000


@pytest.mark.parametrize(
    ("job", "value"),
    [
        (
            "PageView 4611686018427387905 7 1431857103000",
            "01266d778d400000000000000100000000000000070000014d61558098",
        ),
        (
            "shop.orders.v1 0 4294967296 1760000000000",
            "014caa53790000000000000000000000010000000000000199c82cc000",
        ),
    ],
)
def test_a_record_header_has_the_bytes_of_the_specification(ask: Ask, job: str, value: str) -> None:
    assert ask(f"header {job}") == value


def test_the_jar_is_reproducible_and_has_the_version_of_millrace(needs_maven: None, tmp_path: Path) -> None:
    again = package_jar(tmp_path)
    assert again.read_bytes() == jar().read_bytes()
    assert again.name == jar().name == f"millrace-audit-{millrace.__version__}.jar"
    pom = (REPOSITORY / "plugins" / "java" / "pom.xml").read_text()
    assert re.search(r"<version>(.*?)</version>", pom)[1] == millrace.__version__  # type: ignore[index]
