"""Brokers that lost their sessions together with the member that looks, and those that only they lost."""

from __future__ import annotations

from millrace.cluster_state import BrokerAddress
from millrace.presence import Presence

ONE, TWO, MOVED = (BrokerAddress("127.0.0.1", port) for port in (1, 2, 3))


def test_a_broker_that_goes_while_our_session_lasts_is_gone_at_once() -> None:
    presence = Presence(6, lambda: 0.0)
    assert presence.alive(7, {2: TWO, 1: ONE}) == {1: ONE, 2: TWO}
    assert presence.alive(7, {1: ONE}) == {1: ONE}
    assert presence.wait_s() is None


def test_after_a_session_of_our_own_was_lost_the_others_are_awaited_until_they_are_back() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    presence.alive(7, {1: ONE, 2: TWO})
    assert presence.alive(8, {}) == {1: ONE, 2: TWO}
    now[0] = 2.0
    assert presence.wait_s() == 4.0
    assert presence.alive(8, {1: MOVED}) == {1: MOVED, 2: TWO}
    assert presence.alive(8, {1: MOVED, 2: TWO}) == {1: MOVED, 2: TWO}
    assert presence.wait_s() is None
    assert presence.alive(8, {1: MOVED}) == {1: MOVED}, "that session lasts"


def test_nobody_is_awaited_for_longer_than_a_session() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    presence.alive(7, {1: ONE, 2: TWO})
    presence.alive(8, {1: ONE})
    now[0] = 5.9
    assert presence.alive(8, {1: ONE}) == {1: ONE, 2: TWO}
    now[0] = 6.0
    assert presence.wait_s() == 0.0
    assert presence.alive(8, {1: ONE}) == {1: ONE}
    assert presence.wait_s() is None


def test_a_second_loss_begins_the_wait_anew_with_those_still_listed() -> None:
    now = [0.0]
    presence = Presence(6, lambda: now[0])
    presence.alive(7, {1: ONE, 2: TWO})
    presence.alive(8, {})
    now[0] = 5.0
    assert presence.alive(9, {}) == {1: ONE, 2: TWO}
    assert presence.wait_s() == 6.0
