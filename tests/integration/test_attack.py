"""The short form of `make attack`: the highest version of every API, once, without lists of thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.wire.messages import ApiKey
from tests.bench.bench_hot_path import broker
from tests.trials.attack.producer_ids import attack_producer_ids
from tests.trials.attack.requests import versions
from tests.trials.attack.run import Attack, Outcome
from tests.trials.attack.services import Strangers, registry
from tests.trials.attack.strangers import attack_before_login


def test_no_request_costs_a_broker_more_than_its_bytes_allow(tmp_path: Path) -> None:
    highest = {key: version for key, version in versions() if key < 50 or key > 1000}
    chosen = [(ApiKey.METADATA, 8), (ApiKey.FETCH, 11), (ApiKey.PRODUCE, 7), *highest.items()]
    with broker(tmp_path) as (address, pid):
        outcome = Attack(address, pid, seed=1).run(chosen, rounds=1, long_lists=False)
    assert not outcome.failures, outcome.failures


@pytest.mark.slow
def test_strangers_cost_a_listener_with_logins_little_and_keep_no_user_out(tmp_path: Path) -> None:
    highest = {key: version for key, version in versions() if key < 50 or key > 1000}
    outcome = attack_before_login(
        tmp_path, [*highest.items()], rounds=1, seed=1, half_handshakes=1_000, step=9, long_lists=False
    )
    assert not outcome.failures, outcome.failures


@pytest.mark.slow
def test_new_producer_ids_cost_a_broker_little_and_make_it_forget_nobody_else(tmp_path: Path) -> None:
    outcome = attack_producer_ids(tmp_path)
    assert not outcome.failures, outcome.failures


@pytest.mark.slow
def test_strangers_cost_a_service_little_and_keep_no_client_out(tmp_path: Path) -> None:
    outcome = Outcome()
    with registry(tmp_path) as service:
        Strangers(service, outcome).attack(half_handshakes=600)
    assert not outcome.failures, outcome.failures
