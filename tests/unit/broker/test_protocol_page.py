"""docs/protocol.md lists what a broker tells its clients, no more and no less."""

from __future__ import annotations

import contextlib
import re

from kio.index import KioIndexError, load_request_schema

from millrace_broker.handlers import all_apis
from tests.unit.protocol_page import LISTED, TEXT

NONE = re.compile(r"^\| ([\w, ]+) \| ([\d, ]+) \| none \|", re.MULTILINE)


def test_the_table_of_versions_is_what_brokers_advertise() -> None:
    listed = {key: (versions[0], versions[-1]) for key, versions in LISTED.items()}
    assert listed == {api.key: (api.versions[0], api.versions[-1]) for api in all_apis() if api.versions}


def test_no_api_is_declared_twice() -> None:
    keys = [api.key for api in all_apis()]
    assert len(keys) == len(set(keys))


def test_the_table_names_every_other_api_that_kafka_has() -> None:
    named = {
        int(key): name
        for names, keys in NONE.findall(TEXT)
        for name, key in zip(names.split(", "), keys.split(", "), strict=True)
    }
    served = {int(api.key) for api in all_apis()}
    kafkas = {}
    for api_key in set(range(100)) - served:
        with contextlib.suppress(KioIndexError):
            kafkas[api_key] = latest(api_key)
    assert named == kafkas


def latest(api_key: int) -> str:
    """Kafka's name of an API, which kio knows at one version at least."""
    for version in range(20):
        with contextlib.suppress(KioIndexError):
            return load_request_schema(api_key, version).__name__.removesuffix("Request")
    raise KioIndexError(api_key)
