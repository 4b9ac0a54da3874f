"""The map of epochs against the batches themselves: a list of (position, size, epoch)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd, EpochMap

BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=20)
"""Size of each batch, and by how much its epoch is above the one before."""


def laid_out(batches: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(start, end, epoch) of each batch of a log that begins at 0 in epoch 0."""
    position, epoch, log = 0, 0, []
    for size, step in batches:
        epoch += step
        log.append((position, position + size, epoch))
        position += size
    return log


def mapped(log: list[tuple[int, int, int]]) -> EpochMap:
    epochs = EpochMap()
    for start, _, epoch in log:
        epochs.note(epoch, start)
    return epochs


def end_of(log: list[tuple[int, int, int]], asked: int) -> EpochEnd:
    known = [(epoch, end) for _, end, epoch in log if epoch <= asked]
    return EpochEnd(*max(known)) if known else EpochEnd(NO_EPOCH, 0)


@given(BATCHES, st.integers(-1, 45))
def test_an_epoch_ends_where_its_last_batch_does(batches: list[tuple[int, int]], asked: int) -> None:
    log = laid_out(batches)
    assert mapped(log).end_of(asked, log[-1][1] if log else 0) == end_of(log, asked)


@given(BATCHES, st.data())
def test_a_map_that_was_cut_is_the_map_of_the_log_that_was_cut(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = laid_out(batches)
    epochs, kept = mapped(log), data.draw(st.integers(0, len(log)))
    epochs.cut(log[kept][0] if kept < len(log) else log[-1][1] if log else 0)
    assert epochs.starts == mapped(log[:kept]).starts
    assert epochs.last == (log[kept - 1][2] if kept else NO_EPOCH)


@given(BATCHES.filter(bool), st.data())
def test_a_map_forgets_what_retention_dropped(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    log = laid_out(batches)
    epochs, first = mapped(log), data.draw(st.integers(0, len(log) - 1))
    epochs.drop_below(log[first][0])
    assert epochs.starts == mapped(log[first:]).starts


@given(BATCHES)
def test_a_map_is_made_again_of_its_starts(batches: list[tuple[int, int]]) -> None:
    epochs = mapped(laid_out(batches))
    assert EpochMap(epochs.starts).starts == epochs.starts


def test_an_epoch_that_falls_is_damage() -> None:
    epochs = EpochMap([(0, 0), (3, 100)])
    for epoch, position in ((2, 200), (2, 100), (4, 50)):
        with pytest.raises(ValueError, match="follows epoch 3"):
            epochs.note(epoch, position)
    assert epochs.starts == ((0, 0), (3, 100))


def test_two_logs_have_the_same_bytes_up_to_an_end_that_both_give() -> None:
    """The example of KIP-101 and KIP-279: the follower asks until both agree."""
    leader, follower = EpochMap([(0, 0), (1, 50), (4, 90)]), EpochMap([(0, 0), (1, 50), (2, 70), (3, 80)])
    assert leader.end_of(3, 120) == (1, 90)  # the leader has nothing of 2 and 3
    assert follower.end_of(1, 100) == (1, 70)  # so the follower cuts at 70, where its own epoch 1 ends


def test_after_retention_dropped_all_of_an_epoch_the_next_takes_its_place() -> None:
    epochs = EpochMap([(0, 0), (3, 100)])
    epochs.drop_below(140)
    assert epochs.starts == ((3, 140),)
    epochs.note(5, 140)
    assert epochs.starts == ((5, 140),)


@given(BATCHES, st.data())
def test_a_reader_hears_that_a_log_was_cut_below_it_and_no_other_does(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = laid_out(batches)
    kept = data.draw(st.integers(0, len(log)))
    begin = data.draw(st.integers(0, kept))
    grown = data.draw(st.integers(0, 99))
    end = log[kept - 1][1] if kept else 0
    epochs = mapped(log[:kept])
    if grown:
        epochs.note(1_000, end)
    if begin:
        epochs.drop_below(log[begin - 1][1])
    for index, (_, position, epoch) in enumerate(log):
        parting = epochs.parting(epoch, position, end + grown)
        assert (parting is None) == (index < kept)
        assert parting is None or parting.end <= end


def test_a_log_without_a_batch_parts_from_no_reader() -> None:
    """A copy that began behind all that had expired is such a log: it never copied the leader's epochs."""
    assert EpochMap().parting(4, 1000, 1000) is None
