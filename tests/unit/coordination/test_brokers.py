"""Brokers' reports of what they store, and which count as alive after this member has lost its session."""

from __future__ import annotations

import socket

from millrace_broker.coordination import brokers
from millrace_broker.coordination.brokers import Presence, Registration, address_in, stored_partitions


def registered(port: int, session: int) -> Registration:
    return Registration({"host": "127.0.0.1", "port": port}, session)


def ports(presence: Presence, session: int, brokers: dict[int, Registration]) -> dict[int, int]:
    return {broker: address.port for broker, address in presence.alive(session, brokers).items()}


ONE, TWO, THREE = (registered(number, 100 + number) for number in (1, 2, 3))
ONE_ANEW, TWO_ANEW = registered(11, 201), registered(2, 202)


def test_a_broker_that_goes_while_our_session_lasts_is_gone_at_once() -> None:
    presence = Presence(6, lambda: 0.0)
    assert ports(presence, 7, {2: TWO, 1: ONE}) == {1: 1, 2: 2}
    assert ports(presence, 7, {1: ONE}) == {1: 1}
    assert presence.wait_s() is None


def test_after_a_session_of_our_own_was_lost_the_others_are_awaited_until_they_are_back() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    ports(presence, 7, {1: ONE, 2: TWO})
    assert ports(presence, 8, {}) == {1: 1, 2: 2}
    now[0] = 2.0
    assert presence.wait_s() == 4.0
    assert ports(presence, 8, {1: ONE_ANEW}) == {1: 11, 2: 2}
    assert ports(presence, 8, {1: ONE_ANEW, 2: TWO_ANEW}) == {1: 11, 2: 2}
    assert presence.wait_s() is None
    assert ports(presence, 8, {1: ONE_ANEW}) == {1: 11}, "that session lasts"


def test_a_registration_that_was_there_before_is_no_sign_that_its_broker_is_back() -> None:
    presence = Presence(6, lambda: 0.0)
    ports(presence, 7, {1: ONE, 2: TWO})
    assert ports(presence, 8, {1: ONE, 2: TWO}) == {1: 1, 2: 2}
    assert ports(presence, 8, {}) == {1: 1, 2: 2}, "their sessions end a moment after ours"


def test_who_is_back_and_leaves_is_gone_while_another_one_is_awaited() -> None:
    presence = Presence(6, lambda: 0.0)
    ports(presence, 7, {1: ONE, 2: TWO, 3: THREE})
    ports(presence, 8, {})
    ports(presence, 8, {1: ONE_ANEW, 2: TWO_ANEW})
    assert ports(presence, 8, {2: TWO_ANEW}) == {2: 2, 3: 3}


def test_nobody_is_awaited_for_longer_than_a_session() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    ports(presence, 7, {1: ONE, 2: TWO})
    ports(presence, 8, {1: ONE_ANEW})
    now[0] = 5.9
    assert ports(presence, 8, {1: ONE_ANEW}) == {1: 11, 2: 2}
    now[0] = 6.0
    assert presence.wait_s() == 0.0
    assert ports(presence, 8, {1: ONE_ANEW}) == {1: 11}
    assert presence.wait_s() is None


def test_a_second_loss_begins_the_wait_anew_with_those_still_listed() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    ports(presence, 7, {1: ONE, 2: TWO})
    ports(presence, 8, {})
    now[0] = 5.0
    assert ports(presence, 9, {}) == {1: 1, 2: 2}
    assert presence.wait_s() == 6.0


def test_a_broker_says_in_ranges_which_partitions_it_stores() -> None:
    partitions = [("b", 7), ("a", 2), ("a", 0), ("a", 1), ("b", 9), ("b", 8), ("b", 3)]
    assert stored_partitions(partitions) == {"partitions": 7, "topics": {"a": "0-2", "b": "3,7-9"}}
    assert stored_partitions([]) == {"partitions": 0, "topics": {}}
    many = [(f"{name:0200d}", 0) for name in range(6_000)]
    assert stored_partitions(many) == {"partitions": 6_000, "topics": None}, "too many for one ZooKeeper node"


def test_clients_of_a_listener_find_a_broker_at_its_address_and_those_of_another_do_not() -> None:
    address = address_in({"host": "h", "port": 1, "listeners": {"inside": ["h", 1], "outside": ["kafka", 2]}})
    assert [address.at(name) for name in ("inside", "outside", "other")] == [("h", 1), ("kafka", 2), None]


def test_a_broker_that_was_registered_before_there_were_names_is_found_by_all() -> None:
    address = address_in({"host": "h", "port": 1})
    assert address.at("any") == ("h", 1)


def test_a_dead_broker_is_known_by_the_port_on_its_machine_and_not_by_what_lies_before_it() -> None:
    told = {"host": "proxy", "port": 9092, "machine": "m"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        alive = {**told, "boot": "a", "bound": list(listening.getsockname())}
        ours = {**told, "boot": "b", "bound": ["127.0.0.1", 1]}
        assert not brokers.is_dead(alive, ours)
    assert brokers.is_dead(alive, ours), "nobody listens there any more"
    assert brokers.is_dead({**alive, "bound": ["127.0.0.1", 1]}, ours), "we have its address"
