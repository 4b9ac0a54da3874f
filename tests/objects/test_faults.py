"""Every request of publications, a re-load, a compaction and an expiry meets a fault, of one kind per topic.

A proxy stands before the store, and one before the REST catalog. The first time that a verb makes a request
it goes wrong; when it is made again it is answered as it should be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote

import pytest
from pyiceberg.catalog import Catalog

from millrace_warehouse.context import Context
from millrace_warehouse.publish import rest
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.expire import expire_topic
from millrace_warehouse.requests import Compact, Expire
from millrace_warehouse.storage import Storage, objects
from millrace_warehouse.verify import VerifyRun, verify
from tests.loaded import load, offsets, read_again
from tests.objects.test_publish import describe_catalog
from tests.peers.fault_proxy import FaultProxy
from tests.peers.seaweedfs import SeaweedFS
from tests.unit.warehouse.publish.publishing import H10, H11, hours_of, publish_in, table_of

CHANGES = ("PUT", "POST", "DELETE")
FAULTS = {
    "refuse": CHANGES,
    "lose": CHANGES,
    "fail": CHANGES,
    "stall": CHANGES,
    "busy": ("GET", "HEAD", *CHANGES),
    "cut": ("GET",),
    "deny": ("PUT",),
    "conflict": ("POST",),
}
"""Kind -> the requests that meet it."""
CREATED = ("/editions/", "/expired/", "/publications/")
"""Paths of the files created with a condition: no other PUT is denied."""


class FirstTime:
    """Choice of a request's fault: its topic's fault, when its verb makes the request for the first time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, set[str]] = {}
        self.counts = dict.fromkeys(FAULTS, 0)
        """Kind -> requests that met it."""

    def begin(self, kind: str) -> None:
        """A verb of this kind's topic begins."""
        self._made[kind] = set()

    def end(self, kind: str) -> None:
        """From now on all goes well with this kind's topic."""
        del self._made[kind]

    def __call__(self, method: str, path: str) -> str | None:
        kind = next((kind for kind in list(self._made) if f"/{kind}_topic" in unquote(path)), "")
        with self._lock:
            if method not in FAULTS.get(kind, ()) or f"{method} {path}" in self._made[kind]:
                return None
            if kind == "deny" and not any(folder in path for folder in CREATED):
                return None
            self._made[kind].add(f"{method} {path}")
            self.counts[kind] += 1
            return kind


@dataclass(frozen=True)
class Between:
    """A warehouse in the store, by way of the proxies."""

    storage: Storage
    store: FaultProxy
    catalog: FaultProxy


@pytest.fixture
def between(
    seaweedfs: SeaweedFS,
    through_proxy: Storage,
    proxy: FaultProxy,
    warehouse: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Between]:
    monkeypatch.setattr("millrace_warehouse.publish.catalog.NAMESPACE", f"m{warehouse[-8:]}")
    monkeypatch.setattr(objects, "PAUSE_S", 0.05)
    monkeypatch.setattr(objects, "REQUEST_S", 1.0)
    monkeypatch.setattr(rest, "ANSWER_S", 2.0)
    describe_catalog(seaweedfs, monkeypatch)
    with FaultProxy(seaweedfs.catalog.removeprefix("http://")) as before_catalog:
        for name in ("URI", "OAUTH2_SERVER_URI"):
            path = "/v1/oauth/tokens" if name != "URI" else ""
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", f"http://{before_catalog.address}{path}")
        yield Between(through_proxy, proxy, before_catalog)


def compact(context: Context, topic: str) -> None:
    request = Compact(topics=[topic], warehouse=context.storage.root, quiet_s=0.0, small_files=1)
    assert len(compact_topic(context, request, topic).hours) == 2


def forget_snapshots(catalog: Catalog, topic: str) -> None:
    """As others do it: the files that were put together are the table's no more."""
    table = table_of(catalog, topic)
    head = table.current_snapshot()
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot != head]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def expire(context: Context, topic: str) -> None:
    request = Expire(topic=topic, warehouse=context.storage.root, older_than_s=0.0, reader_grace_s=0.0)
    assert expire_topic(context, request).data_files == 8


def check(storage: Storage, catalog: Catalog, topic: str, rows: int) -> None:
    assert offsets(table_of(catalog, topic)) == list(range(rows))
    assert sum(added - removed for _, _, added, removed in hours_of(catalog, topic)) == rows
    (report,) = verify(VerifyRun(storage=storage, catalog=catalog, rows=True), topic)
    assert report.problems == []


def all_verbs(storage: Storage, kind: str, faults: FirstTime) -> None:
    """All verbs of one topic, whose requests meet one kind of fault."""
    topic = f"{kind}_topic"
    for _ in range(3):
        load(storage, topic, {H10: 2, H11: 1})
    with connect(storage, "lake") as catalog:
        context = Context(storage=storage, catalog=catalog, clock=lambda: time.time() + 10 * 24 * 3600)
        faults.begin(kind)
        publish_in(storage, catalog, H10, H11, topic=topic)
        faults.begin(kind)
        read_again(storage, topic, 2, {H10: 3})
        load(storage, topic, {H11: 2})
        faults.begin(kind)
        publish_in(storage, catalog, topic=topic)
        faults.begin(kind)
        compact(context, topic)
        faults.end(kind)
        forget_snapshots(catalog, topic)
        faults.begin(kind)
        expire(context, topic)
        faults.end(kind)
        check(storage, catalog, topic, 11)


def test_whatever_a_verbs_first_requests_meet_each_row_is_there_once(between: Between) -> None:
    between.store.fault = between.catalog.fault = faults = FirstTime()
    with ThreadPoolExecutor(len(FAULTS)) as threads:
        runs = {kind: threads.submit(all_verbs, between.storage, kind, faults) for kind in FAULTS}
    failed = {kind: repr(run.exception()) for kind, run in runs.items() if run.exception()}
    assert not failed, failed
    print(faults.counts)
    assert all(faults.counts.values()), faults.counts


@pytest.mark.parametrize("kind", ["refuse", "busy", "lose", "fail", "conflict", "stall"])
def test_whatever_the_first_requests_of_a_catalog_meet_a_first_publication_is_made_once(
    between: Between, kind: str
) -> None:
    """Also those that name no table: settings, token, namespace, and the one that makes the table."""
    made: set[str] = set()

    def choose(method: str, path: str) -> str | None:
        if f"{method} {path}" in made or (method != "POST" and kind in ("conflict", "stall")):
            return None
        made.add(f"{method} {path}")
        return kind

    between.catalog.fault = choose
    load(between.storage, "first", {H10: 3})
    with connect(between.storage, "lake") as catalog:
        assert publish_in(between.storage, catalog, H10, topic="first").published
        check(between.storage, catalog, "first", 3)
    assert any(request.endswith("/tables") for request in made), made
