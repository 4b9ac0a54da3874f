"""Placement of new partitions' replicas: no two on a broker, on as many racks as possible, spread evenly."""

from __future__ import annotations

from collections import Counter
from itertools import chain, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import MillraceError
from millrace.zookeeper.topic_state import Replicas
from millrace_broker.coordination.placement import Load, drained, place

RACKS = st.dictionaries(st.integers(0, 99), st.sampled_from("abcdefghi"), min_size=1, max_size=9)
PLACED = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True).map(tuple), max_size=9)
SEVERAL = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}


@given(RACKS, st.integers(0, 40), st.data())
def test_no_two_replicas_are_on_a_broker_and_none_shares_a_rack_that_need_not(
    racks: dict[int, str], count: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    here, others = data.draw(PLACED), data.draw(PLACED)
    placed = place(count, replicas, racks, here, Load.of([*here, *others]))
    assert len(placed) == count
    for partition in placed:
        assert len(partition) == len(set(partition) & racks.keys()) == replicas
        used = Counter(racks[broker] for broker in partition)
        assert len(used) == min(replicas, len(set(racks.values())))
        room = Counter(racks.values())
        roomy = [used[rack] for rack in room if used[rack] < room[rack]]
        assert not roomy or max(used.values()) <= min(roomy) + 1


@given(RACKS, st.integers(0, 40), PLACED, PLACED, st.data())
def test_who_leads_does_not_depend_on_the_number_of_replicas_nor_on_the_order_of_what_is_known(
    racks: dict[int, str], count: int, here: list[Replicas], others: list[Replicas], data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    placed = place(count, replicas, racks, here, Load.of([*here, *others]))
    alone = place(count, 1, racks, here, Load.of([*here, *others]))
    assert [partition[:1] for partition in placed] == alone
    shuffled = dict(data.draw(st.permutations(list(racks.items()))))
    assert place(count, replicas, shuffled, here[::-1], Load.of([*others, *here][::-1])) == placed


@pytest.mark.parametrize("brokers", range(1, 9))
def test_a_new_topic_is_led_and_stored_evenly(brokers: int) -> None:
    racks = {broker: str(broker) for broker in range(brokers)}
    for replicas, count in product(range(1, brokers + 1), range(61)):
        placed = place(count, replicas, racks, (), Load())
        leads = Counter(partition[0] for partition in placed)
        stores = Counter(chain.from_iterable(placed))
        follows = Counter((first, other) for first, *others in placed for other in others)
        assert max(leads.values(), default=0) - min(leads[broker] for broker in racks) <= 1
        assert max(stores.values(), default=0) - min(stores[broker] for broker in racks) <= 3
        for one in racks:
            work = [follows[one, other] for other in racks if other != one]
            assert not work or max(work) - min(work) <= 1, "whoever dies, all others take over as much"


def test_racks_alternate() -> None:
    assert place(5, 2, SEVERAL, (), Load()) == [(1, 3), (2, 4), (3, 5), (4, 5), (5, 1)]
    assert place(2, 3, SEVERAL, (), Load()) == [(1, 3, 5), (2, 4, 5)]


def test_a_broker_that_joined_lately_gets_what_comes_next() -> None:
    here = [(1, 2), (2, 1), (1, 2), (2, 1)]
    assert place(3, 2, {1: "a", 2: "b", 3: "c"}, here, Load.of(here)) == [(3, 1), (3, 2), (1, 3)]


@given(RACKS.filter(lambda racks: len(racks) > 1), st.integers(1, 20), st.data())
def test_a_drained_broker_has_nothing_and_the_others_keep_what_they_have(
    racks: dict[int, str], count: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks) - 1))
    placed = {("t", number): found for number, found in enumerate(place(count, replicas, racks, (), Load()))}
    leaving = data.draw(st.sampled_from(sorted(racks)))
    plan = drained(placed, leaving, racks)
    assert plan.keys() == {key for key, found in placed.items() if leaving in found}
    for key, found in plan.items():
        before = placed[key]
        assert leaving not in found
        assert set(found) <= racks.keys()
        assert len(set(found)) == len(before)
        assert sum(old != new for old, new in zip(before, found, strict=True)) == 1
    with pytest.raises(MillraceError, match="no other broker is alive to take t-0"):
        drained({("t", 0): tuple(racks)}, leaving, racks)
