"""Fingerprints: sums of both kinds, and forged or edited messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ConfigError
from millrace.records import BatchHeader, Message, build_batch
from millrace.topics_file import TopicPolicy, read_policies
from millrace_audit.auditor.store import AuditStore
from millrace_audit.auditor.verdict.evidence import Evidence
from millrace_audit.reader.counting import BatchCounter, Tally
from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.fingerprints import (
    STRONG_BYTES,
    Fingerprint,
    added,
    agree,
    fingerprint,
    fingerprint_of,
    is_strong,
    joined,
    split,
    strong_fingerprint,
    wrapped,
)
from millrace_audit.reports.messages import OFFLINE, ReportedWindow, schema_file
from millrace_audit.reports.ranges import SequenceRanges
from tests.page_view import EVENT
from tests.unit.audit.story import TOPIC, Story, W
from tests.xxh64 import forged

DIGESTS: dict[str, Fingerprint] = {"fast": fingerprint, "strong": strong_fingerprint}
ANY = st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([*DIGESTS.values()])))


def total(values: list[bytes], digest: Fingerprint = strong_fingerprint) -> int:
    return wrapped(sum(map(digest, values)))


def test_a_fast_fingerprint_is_what_other_languages_compute() -> None:
    assert fingerprint(b"") == 0xEF46DB3751D8E999, "XXH64 of nothing, as its specification says"
    assert fingerprint(memoryview(b"Nobody inspects the spammish repetition")) == 0xFBCEA83C8A378BF1


def test_a_strong_fingerprint_is_xxh64_and_shake128_of_the_standard() -> None:
    digits = f"{strong_fingerprint(b''):x}"
    assert len(digits) == 1 + 2 * 8 + 2 * STRONG_BYTES, "a mark, and 4096 bits"
    lowest = bytes.fromhex(digits[1:])[::-1]
    assert lowest[:8][::-1].hex() == "ef46db3751d8e999"
    assert lowest[8:].hex().startswith("7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26")


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_a_sum_of_fast_fingerprints_does_not_depend_on_where_it_is_wrapped(values: list[int]) -> None:
    some = 0
    for value in values:
        some = added(some, value)
    assert some == wrapped(sum(values))
    assert -(1 << 63) <= some < 1 << 63


@given(ANY, st.randoms())
def test_a_sum_depends_neither_on_order_nor_on_parts(values: list[tuple[bytes, Any]], draw: Any) -> None:
    prints = [wrapped(digest(value)) for value, digest in values]
    there = 0
    for one in prints:
        there = added(there, one)
    draw.shuffle(prints)
    cut = draw.randint(0, len(prints))
    parts = [0, 0]
    for n, one in enumerate(prints):
        parts[n < cut] = added(parts[n < cut], one)
    again = added(*parts)
    assert agree(again, there)
    assert joined(*split(again)) == again
    kinds = {digest for _, digest in values}
    if len(kinds) == 1:
        assert is_strong(there) == (kinds == {strong_fingerprint})
        assert again == there
    assert split(there)[0] == wrapped(sum(fingerprint(value) for value, _ in values)), "XXH64 is in both"


def test_what_is_taken_from_a_sum_leaves_the_rest() -> None:
    whole, part = total([b"a", b"b", b"c"]), total([b"b"])
    assert added(whole, -part) == total([b"a", b"c"])
    assert added(part, -part) == 0
    assert added(added(-part, whole), part) == whole


def test_sums_of_different_kinds_agree_in_what_both_know() -> None:
    values = [b"a", b"b"]
    assert agree(total(values), total(values, fingerprint))
    assert not agree(total(values), total([b"a", b"x"], fingerprint))
    assert not agree(total(values), total([b"a", b"x"]))


def test_a_strong_sum_of_another_version_counts_as_fast_and_a_broken_one_is_refused() -> None:
    fast, strong = split(total([b"a"]))
    assert strong is not None
    assert joined(fast, b"\2" + strong[1:]) == fast
    assert joined(fast, b"") == fast
    with pytest.raises(ValueError, match="504 bytes"):
        joined(fast, strong[:-1])


def test_the_file_of_topics_chooses_the_fingerprint(tmp_path: Any) -> None:
    file = tmp_path / "topics.toml"
    file.write_text('[PageView]\nfingerprint = "strong"\n[Click]\n')
    policies = read_policies(file)
    assert [fingerprint_of(topic, policies) for topic in ("PageView", "Click", "Other")] == [
        strong_fingerprint,
        fingerprint,
        fingerprint,
    ]
    assert TopicPolicy().fingerprint == "fast"
    file.write_text('[PageView]\nfingerprint = "some"\n')
    with pytest.raises(
        ConfigError, match=r"\[PageView\]: fingerprint 'some' is unknown: write fast or strong"
    ):
        read_policies(file)


# Messages that were forged or edited on purpose.


@pytest.fixture
def story() -> Iterator[Story]:
    store = AuditStore("sqlite://")
    yield Story(store)
    store.close()


SCHEMA = EventSchema(schema_file("PageView"), 7)
LOST = 3


def event(sequence: int, url: str = "/presentations/logstash-monitorama-2013/images/kibana.png") -> bytes:
    header = {"time": W + sequence, "server": "web-1", "service": "shop", "instance": 1, "sequence": sequence}
    return SCHEMA.encode(header, {**EVENT, "url": url})


def forgery_of(lost: bytes) -> bytes:
    """Return another event with the number and the XXH64 of a lost event. Only its URL differs."""
    return forged(lambda text: event(LOST, f"/forged/{text}"), fingerprint(lost))


def counts(values: list[bytes], digest: Fingerprint) -> Any:
    written = build_batch([Message(W, None, value) for value in values], base_offset=0)
    batch, tally = (BatchHeader.of(written), memoryview(written)), Tally()
    for _ in BatchCounter(lambda _: True, digest).count("PageView", [batch], 0, tally):
        pass
    assert not tally.foreign
    return tally.counts


def tell(
    story: Story, home: list[bytes], offline: list[bytes], reported: Fingerprint, counted: Fingerprint
) -> None:
    """Add the report of ten sent events, and the counts of the events that each of two clusters holds."""
    sent = total([event(n) for n in range(10)], reported)
    window = ReportedWindow(TOPIC, W, SequenceRanges([(0, 9)]), SequenceRanges(), sent)
    story.hello()
    story.report(0, (0, 9), windows=[window])
    story.count("dc1", counts(home, counted))
    story.count(OFFLINE, counts(offline, counted))
    story.beats()


def test_the_forgery_is_another_event_of_the_same_number_and_the_same_xxh64() -> None:
    lost, other = event(LOST), forgery_of(event(LOST))
    assert other != lost
    assert other[:30] == lost[:30]
    assert fingerprint(other) == fingerprint(lost)
    assert strong_fingerprint(other) != strong_fingerprint(lost)


@pytest.mark.parametrize(
    ("reported", "counted", "findings"),
    [
        ("strong", "strong", [("altered", "dc1", [[0, 9]])]),
        ("fast", "fast", []),
        ("fast", "strong", []),
        ("strong", "fast", []),
    ],
)
def test_a_forgery_in_place_of_a_lost_event_is_altered_if_both_sums_are_strong(
    story: Story, reported: str, counted: str, findings: list[Any]
) -> None:
    here = [forgery_of(event(LOST)) if n == LOST else event(n) for n in range(10)]
    tell(story, here, here, DIGESTS[reported], DIGESTS[counted])
    assert story.apply().findings() == findings


@pytest.mark.parametrize("digest", DIGESTS.values(), ids=DIGESTS)
def test_an_event_that_is_only_edited_is_altered_by_either_sum(story: Story, digest: Fingerprint) -> None:
    edited = [event(n, "/edited" if n == LOST else "/") for n in range(10)]
    tell(story, edited, edited, digest, digest)
    assert story.apply().findings() == [("altered", "dc1", [[0, 9]])]


def test_a_forgery_in_the_aggregate_cluster_is_altered_there(story: Story) -> None:
    whole = [event(n) for n in range(10)]
    there = [forgery_of(whole[LOST]) if n == LOST else whole[n] for n in range(10)]
    tell(story, whole, there, strong_fingerprint, strong_fingerprint)
    assert story.apply().findings() == [("altered", OFFLINE, [[0, 9]])]


def test_strong_sums_of_the_same_events_agree_and_prove_the_window(story: Story) -> None:
    whole = [event(n) for n in range(10)]
    tell(story, whole, whole, strong_fingerprint, strong_fingerprint)
    story.load(counts(whole, fingerprint))
    assert story.apply().findings() == []
    assert story.verdict() == "complete"


@pytest.mark.parametrize(("digest", "is_too_much"), [(fingerprint, False), (strong_fingerprint, True)])
def test_the_evidence_of_a_window_is_bounded_by_the_size_of_its_sums(
    monkeypatch: pytest.MonkeyPatch, digest: Fingerprint, is_too_much: bool
) -> None:
    monkeypatch.setattr("millrace_audit.auditor.verdict.evidence.MOST_RANGES_KEPT", 100)
    evidence = Evidence()
    for producer in range(30):
        evidence.count("dc1", producer, SequenceTally([(0, 0)], total([b"%d" % producer], digest)))
    assert evidence.bound().is_too_much == is_too_much
