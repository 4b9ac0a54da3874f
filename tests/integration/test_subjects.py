"""Real brokers and a real registry whose subjects are named otherwise than topics: all agree on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.retained import ids_in
from tests.support import REPOSITORY, Process, run_millrace
from tests.warehouses import EMPTY_EVENT, TestSite

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("subjects")
    return TestSite.start(start_for_module, f"subjects-{uuid4().hex[:6]}", folder, zookeeper)


def send(site: TestSite, topic: str, words: list[str] | None, schema: object = None, count: int = 3) -> None:
    options = {"cluster": site.cluster.name, "server": "web1", "service": "web", "subjects": words}
    with AuditedProducer(site.cluster.bootstrap, site.registry, **options) as producer:  # type: ignore[arg-type]
        for n in range(count):
            producer.send(topic, schema, EMPTY_EVENT, time_ms=START_MS + n)  # type: ignore[arg-type]


def created(site: TestSite) -> str:
    topic = f"views-{uuid4().hex[:6]}"
    with site.cluster.client() as client:
        client.create_topic(topic, 2)
    return topic


def test_a_producer_registers_and_looks_up_where_the_deployment_says(site: TestSite) -> None:
    topic = created(site)
    for words, subject in (
        (["topic-value"], f"{topic}-value"),
        (["record"], "millrace.events.PageView"),
        ([f"{topic}=mine"], "mine"),
        (None, topic),
    ):
        send(site, topic, words, PAGE_VIEW)
        with SchemaRegistryClient(site.registry) as registry:
            assert registry.lookup(subject, PAGE_VIEW) is not None, subject
    send(site, topic, ["topic-value"])  # the newest of the topic's subject


def test_a_reader_names_each_schema_of_another_subject_after_the_messages(site: TestSite) -> None:
    topic = created(site)
    other = {**PAGE_VIEW, "doc": "of another subject"}
    with SchemaRegistryClient(site.registry) as registry:
        schema_id = registry.register(f"{topic}-value", other)
    send(site, topic, ["topic-value"])
    read = ("consume", topic, "--from-beginning", "--until-end", "--bootstrap", site.cluster.bootstrap)
    reader = Process([*read, "--registry", site.registry])
    assert reader.wait() == 0
    assert [line[:1] for line in reader.lines[:-1]] == ["{"] * 3
    assert reader.lines[-1].startswith(f"note: {topic}: its messages have schema id {schema_id}")
    shown = run_millrace(*read, "--registry", site.registry, "--subject", "topic-value")
    assert "note: " not in shown.stderr


def test_the_ids_of_all_retained_messages_are_counted(site: TestSite) -> None:
    topic = created(site)
    with SchemaRegistryClient(site.registry) as registry:
        first, second = (registry.register(topic, {**PAGE_VIEW, "doc": f"number {n}"}) for n in (1, 2))
        send(site, topic, None, registry.schema(first), count=500)
        send(site, topic, None, registry.schema(second), count=7)
    run_millrace("produce", topic, "--bootstrap", site.cluster.bootstrap, stdin="no Avro\n")
    with site.cluster.client() as client:
        assert ids_in(client, topic) == {first: 500, second: 7}
        tail = ids_in(client, topic, tail_only=True)
    assert set(tail) <= {first, second}
    assert tail.total() <= 507


def test_a_folder_is_registered_under_the_topics_subjects(site: TestSite, tmp_path: Path) -> None:
    (tmp_path / "PageView.avsc").write_text(json.dumps({**PAGE_VIEW, "doc": "in a folder"}))
    for words, subject in (
        (["--subject", "topic-value"], "PageView-value"),
        (["--subject", "record"], "millrace.events.PageView"),
        (["--subject", "PageView=elsewhere"], "elsewhere"),
    ):
        done = run_millrace("schemas", "apply", str(tmp_path), "--registry", site.registry, *words, "--json")
        assert done.returncode == 0, done.stderr
        assert [row["subject"] for row in json.loads(done.stdout)] == [subject]


def test_a_plan_counts_what_could_not_be_read_and_names_what_nobody_gates(
    site: TestSite, tmp_path: Path
) -> None:
    topic, other = created(site), created(site)
    old = {**PAGE_VIEW, "name": "Seen", "fields": [*PAGE_VIEW["fields"], {"name": "n", "type": "int"}]}
    with SchemaRegistryClient(site.registry) as registry:
        first = registry.register(topic, old)
        second = registry.register(topic, {**old, "fields": old["fields"][:-1]})
        stray = registry.register(f"{other}-value", {**old, "doc": "of a default serializer"})
        with AuditedProducer(
            site.cluster.bootstrap, site.registry, cluster=site.cluster.name, server="s", service="w"
        ) as producer:
            for n in range(7):
                producer.send(topic, registry.schema(first), {**EMPTY_EVENT, "n": n}, time_ms=START_MS + n)
            for n in range(5):
                producer.send(topic, registry.schema(second), EMPTY_EVENT, time_ms=START_MS + n)
        with AuditedProducer(
            site.cluster.bootstrap, site.registry, cluster=site.cluster.name, server="s", service="w",
            subjects=["topic-value"],
        ) as producer:  # fmt: skip
            producer.send(other, None, {**EMPTY_EVENT, "n": 1}, time_ms=START_MS)
    (tmp_path / f"{topic}.avsc").write_text(
        json.dumps({**old, "fields": [*old["fields"][:-1], {"name": "n", "type": "string", "default": ""}]})
    )
    plan = ("schemas", "plan", str(tmp_path), "--plain", "--registry", site.registry)
    shown = run_millrace(*plan, "--bootstrap", site.cluster.bootstrap, "--json")
    assert shown.returncode == 0, shown.stderr  # the latest version, the second, can be read
    rows = {row["subject"]: row for row in json.loads(shown.stdout)}
    assert rows[topic]["state"] == "new version"
    assert rows[topic]["fields"] == ['+ n: string = ""']
    assert rows[topic]["notes"] == [
        f"topic {topic}: 7 retained messages of schema id {first} could not be read:"
        " n: string cannot read int"
    ]
    assert rows[f"{other}-value"]["state"] == "ungated"
    assert f"topic {other} carries its schema id {stray}" in rows[f"{other}-value"]["notes"][0]
    assert not any(name.startswith("Audit") for name in rows)
    told = run_millrace(*plan, "--bootstrap", site.cluster.bootstrap).stdout
    assert "7 retained messages" in told
