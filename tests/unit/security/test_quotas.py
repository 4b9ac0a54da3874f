"""A user's quota and debt, and that new quotas count at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace_broker.security.quotas import MAX_DEBT_S, MAX_METERS, Kind, Limits, Meter, Meters
from tests.support import Clock


class Book:
    def __init__(self, limits: Mapping[str | None, Limits]) -> None:
        self.limits = limits


def test_who_has_no_quota_never_waits() -> None:
    meter = Meter(Book({"bob": {"producer_byte_rate": 1.0}}), "alice", Clock())
    assert meter.took(Kind.WRITTEN, 1e12) == 0
    assert meter.wait_s() == 0


def test_a_second_is_free_and_what_is_beyond_is_paid_back_by_waiting() -> None:
    clock = Clock()
    meter = Meter(Book({"alice": {"producer_byte_rate": 100.0}}), "alice", clock)
    assert meter.took(Kind.WRITTEN, 100) == 0
    assert meter.took(Kind.WRITTEN, 50) == pytest.approx(0.5)
    assert meter.took(Kind.READ, 1e9) == 0
    clock.now += 0.2
    assert meter.wait_s() == pytest.approx(0.3)
    clock.now += 1000
    assert meter.took(Kind.WRITTEN, 101) == pytest.approx(0.01)


@pytest.mark.parametrize("kind", list(Kind))
def test_in_any_time_no_more_is_taken_than_the_rate_one_second_and_one_request(kind: Kind) -> None:
    clock, rate, request = Clock(), 100.0, 70.0
    limits = {"producer_byte_rate": rate, "consumer_byte_rate": rate, "request_percentage": rate * 100}
    meter, taken = Meter(Book({None: limits}), "alice", clock), 0.0
    while clock.now < 200:
        taken += request
        clock.now += meter.took(kind, request)
    assert taken <= rate * 100 + rate + request


def test_what_is_owed_is_bounded() -> None:
    meter = Meter(Book({"alice": {"producer_byte_rate": 1.0}}), "alice", Clock())
    assert meter.took(Kind.WRITTEN, 1e9) == MAX_DEBT_S


def test_the_quota_of_a_user_counts_before_that_of_everybody_and_new_ones_at_once() -> None:
    clock = Clock()
    book = Book({None: {"producer_byte_rate": 10.0, "consumer_byte_rate": 10.0}})
    meter = Meter(book, "alice", clock)
    assert meter.took(Kind.WRITTEN, 20) == pytest.approx(1)
    book.limits = {**book.limits, "alice": {"producer_byte_rate": 1000.0}}
    assert meter.took(Kind.WRITTEN, 20) == 0
    assert meter.took(Kind.READ, 20) == pytest.approx(1)
    book.limits = {}
    assert meter.took(Kind.READ, 1e9) == 0


def test_a_users_connections_share_one_meter_and_meters_are_bounded() -> None:
    meters = Meters(Book({}))
    alice = meters.of("User:alice")
    assert meters.of("User:alice") is alice
    for number in range(MAX_METERS):
        meters.of(f"User:{number}")
    assert meters.of("User:alice") is not alice
