"""`millrace topics`, `produce` and `consume` against a real broker, as a person or a script runs them."""

from __future__ import annotations

import base64
import io
import json
import math
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from millrace.cli import cli
from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_registry.client import SchemaRegistryClient
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import WAIT_S, Process, run_millrace, wait_until


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "commands")


def run(broker: RunningBroker, *arguments: str, stdin: str | bytes | None = None) -> str:
    """Run a command in this process, which saves its start; what it prints on standard output."""
    done = CliRunner().invoke(cli, [*arguments, "--bootstrap", broker.bootstrap], input=stdin)
    assert done.exception is None, done.exception
    return done.stdout


def refused(broker: RunningBroker, *arguments: str) -> str:
    """The one line that `millrace` prints for the error a command ends in."""
    done = CliRunner().invoke(cli, [*arguments, "--bootstrap", broker.bootstrap])
    assert isinstance(done.exception, MillraceError), done.exception
    (line,) = str(done.exception).splitlines()
    return line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_consumer_that_waits_says_so_and_how_it_ends(
    broker: RunningBroker, start: Callable[..., Process], number: signal.Signals
) -> None:
    topic = f"waited-for-{number.name}"
    run(broker, "topics", "create", topic, "--partitions", "1")
    waiting = start("consume", topic, "--from-beginning", "--bootstrap", broker.bootstrap)
    run(broker, "produce", topic, stdin="now\n")
    wait_until("the message", lambda: "now" in waiting.lines)
    assert waiting.lines[0] == f"waiting for messages of {topic}; Ctrl-C ends, --until-end does not wait"
    waiting.signal(number)  # SIGINT also where a shell in the background had it ignored
    assert waiting.wait() == 0
    assert waiting.lines[-1] == "now"


def test_a_line_that_is_no_text_is_sent_as_its_bytes_are(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "bytes", "--partitions", "1")
    run(broker, "produce", "bytes", "--key-separator", ":", stdin=b"k:caf\xe9\r\nplain\n")
    read = ("consume", "bytes", "--from-beginning", "--until-end", "--json")
    records = [json.loads(line) for line in run(broker, *read).splitlines()]
    value = {"base64": base64.b64encode(b"caf\xe9").decode()}
    assert [(r["key"], r["value"]) for r in records] == [("k", value), (None, "plain")]


def test_lines_go_in_and_come_out(broker: RunningBroker) -> None:
    assert (
        run(broker, "topics", "create", "lines", "--partitions", "1") == "created lines with 1 partitions\n"
    )
    run(broker, "produce", "lines", "--key-separator", ":", "--codec", "zstd", stdin="k:wörld\nno key\n\n")
    read = ("consume", "lines", "--from-beginning", "--until-end")
    assert run(broker, *read) == "wörld\nno key\n\n"
    records = [json.loads(line) for line in run(broker, *read, "--json").splitlines()]
    assert [(r["key"], r["value"]) for r in records] == [("k", "wörld"), (None, "no key"), (None, "")]
    first, _, last = (r["offset"] for r in records)  # 0 and 2 when they came in one batch
    late = run(broker, "consume", "lines", "--partition", "0", "--offset", f"{last}", "--until-end", "--json")
    assert (first, json.loads(late)["offset"]) == (0, last)
    listed = json.loads(run(broker, "topics", "list", "--json"))
    assert {"topic": "lines", "partitions": 1, "replicas": 1, "under_replicated": 0} in listed
    described = json.loads(run(broker, "topics", "describe", "lines", "--json"))
    (partition,) = described["partitions"]
    assert partition.pop("bytes") > 60
    copies = {"leader_epoch": 0, "replicas": [1], "in_sync": [1], "eligible": []}
    assert partition == {"partition": 0, "leader": 1, **copies, "start": 0, "high_watermark": last + 1}
    assert {"name": "flush.ms", "value": "100", "source": "default"} in described["settings"]
    table = run(broker, "topics", "describe", "lines")
    assert "high watermark" in table
    assert "retention.ms" in table
    assert "lines" in run(broker, "topics", "list")
    assert run(broker, "topics", "delete", "lines") == "deleted lines\n"
    assert "lines" not in run(broker, "topics", "list")


def test_a_cluster_without_topics_is_said_to_have_none(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterClient, "topics", lambda *_: {})
    assert run(broker, "topics", "list") == "no topics\n"


def test_avro_values_are_decoded_with_the_registry_they_are_of(
    broker: RunningBroker, start: Callable[..., Process], tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/registry.db"
    registry = f"http://{start('registry', '--listen', '127.0.0.1:0', '--database-url', database).ready()}"
    fields = [
        {"name": "url", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "shares", "type": {"type": "array", "items": "double"}},
    ]
    schema = {"type": "record", "name": "Visit", "fields": fields}
    with SchemaRegistryClient(registry) as client:
        schema_id = client.register("visits", schema)
    out = io.BytesIO()
    event = {"url": "/ö", "at": datetime(2015, 5, 17, 10, tzinfo=UTC), "raw": b"\xff"}
    event |= {"shares": [0.5, math.nan, -math.inf]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), event)
    avro = b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()
    unknown, cut, long = b"\0\0\0\0\x63" + out.getvalue(), avro[:-1], avro + b"x"
    broker.create_topic("visits")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (avro, b"text", unknown, cut, long, None):
        producer.produce("visits", value)
    assert producer.flush(WAIT_S) == 0
    read = ("consume", "visits", "--from-beginning", "--until-end", "--registry", registry)
    first, text, *others = map(json.loads, run(broker, *read).splitlines())
    shares = [0.5, "NaN", "-Infinity"]  # JSON has no such numbers
    assert first == {
        "url": "/ö",
        "at": "2015-05-17T10:00:00+00:00",
        "raw": {"base64": "/w=="},
        "shares": shares,
    }
    assert text == "text"
    assert [base64.b64decode(each["base64"]) for each in others[:3]] == [unknown, cut, long]
    assert others[3] is None
    (line, *_) = run(broker, *read, "--json").splitlines()
    assert json.loads(line)["value"] == first


def test_a_topic_is_changed_while_it_is_in_use(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "changing", "--partitions", "2", "--config", "flush.ms=7")
    alter = ("topics", "alter", "changing")
    changes = ("--config", "retention.ms=60000", "--delete-config", "flush.ms", "--partitions", "5")
    said = run(broker, *alter, *changes)
    assert said == "changed retention.ms, flush.ms of changing\nchanging has 5 partitions\n"
    described = json.loads(run(broker, "topics", "describe", "changing", "--json"))
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2, 3, 4]
    told = {item["name"]: (item["value"], item["source"]) for item in described["settings"]}
    assert (told["retention.ms"], told["flush.ms"]) == (("60000", "topic"), ("100", "default"))
    run(broker, "produce", "changing", "--partition", "4", stdin="x\n")
    assert run(broker, "consume", "changing", "--partition", "4", "--from-beginning", "--until-end") == "x\n"
    assert "has 5 partitions already" in refused(broker, *alter, "--partitions", "3")
    assert "retention.ms='soon' is not a number" in refused(broker, *alter, "--config", "retention.ms=soon")
    assert "unknown topic setting 'nope'" in refused(broker, *alter, "--delete-config", "nope")
    assert "both set and deleted" in refused(broker, *alter, "--config", "a=1", "--delete-config", "a")
    assert "nothing to change" in refused(broker, *alter)
    assert "millrace topics list" in refused(broker, "topics", "alter", "nope", "--partitions", "9")
    run(broker, "topics", "delete", "changing")


def test_a_creation_whose_outcome_is_unknown_says_how_to_find_it_out(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise MillraceError("no answer (gave up after 10 s)")

    monkeypatch.setattr(ClusterClient, "create_topic", silent)
    line = refused(broker, "topics", "create", "doubtful")
    assert line.startswith("topic 'doubtful' may or may not have been created: no answer")
    assert f"millrace topics describe doubtful --bootstrap {broker.bootstrap}" in line


def test_mistakes_are_one_line_that_says_what_to_do(broker: RunningBroker) -> None:
    assert "millrace topics create nope" in refused(broker, "consume", "nope")
    assert "millrace topics list" in refused(broker, "topics", "delete", "nope")
    assert "topic 'nope' does not exist on" in refused(broker, "topics", "describe", "nope")
    assert "'a b' is not a topic name" in refused(broker, "topics", "create", "a b")
    run(broker, "topics", "create", "once")
    assert "exists already" in refused(broker, "topics", "create", "once")
    again = run(broker, "topics", "create", "once", "--partitions", "9", "--if-not-exists")
    assert again == "once exists already, with 4 partitions\n"
    assert "partitions 0 to 3, not 9" in refused(broker, "consume", "once", "--partition", "9")
    assert "partitions 0 to 3, not 9" in refused(broker, "produce", "once", "--partition", "9")
    assert "is not KEY=VALUE" in refused(broker, "topics", "create", "x", "--config", "retention.ms")
    late = refused(broker, "consume", "once", "--partition", "0", "--offset", "99", "--until-end")
    assert "out of range" in late
    assert "millrace topics describe once" in late


def test_what_is_asked_of_a_partition_or_a_broker_that_is_not_there_fails(broker: RunningBroker) -> None:
    assert refused(broker, "topics", "elect", "missing-0") == (
        "1 of 1 elections failed, such as that of missing-0"
    )
    assert refused(broker, "brokers", "drain", "7") == (
        "there is no broker 7, and nothing is stored on it: see `millrace brokers list --bootstrap"
        f" {broker.bootstrap}`"
    )
    run(broker, "topics", "create", "single", "--partitions", "1")
    assert "single-0" in run(broker, "topics", "elect", "single-0")  # it leads already, which is well


def test_a_broker_without_a_rack_is_listed_with_its_host_as_the_rack(broker: RunningBroker) -> None:
    (listed,) = json.loads(run(broker, "brokers", "list", "--json"))
    assert listed["rack"] == broker.bootstrap.split(":")[0]


def test_a_refusal_as_a_script_sees_it(broker: RunningBroker) -> None:
    done = run_millrace("produce", "nope", "--bootstrap", broker.bootstrap, stdin="x\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("millrace: topic 'nope' does not exist on")
    assert len(done.stderr.splitlines()) == 1
