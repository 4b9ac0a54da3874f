"""The registry as a process: other people's client against it, killed and restarted, shared and misused."""

from __future__ import annotations

import json
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import (
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from millrace.cli import cli
from millrace.errors import ConfigError, MillraceError
from millrace_registry import client as ours
from tests.conftest import Start
from tests.support import REPOSITORY, ROUNDS, WAIT_S, Process, run_millrace, wait_until

SCHEMAS = REPOSITORY / "schemas"
PAGE_VIEW = json.loads((SCHEMAS / "PageView.avsc").read_text())
EVENT = {
    "header": {"time": 1432155905000, "server": "web-1", "service": "www", "instance": 7, "sequence": 0},
    "memberId": None,
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "referrer": None,
    "userAgent": "curl",
    "status": 200,
    "bytes": 512,
}


def sized(number: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": number}


def serve(start: Start, database: Path, listen: str = "127.0.0.1:0") -> Process:
    return start("registry", "--listen", listen, "--database-url", f"sqlite:///{database}")


@pytest.fixture(scope="module")
def url(start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A running registry that the module's tests share; take a subject of your own."""
    return f"http://{serve(start_for_module, tmp_path_factory.mktemp('registry') / 'r.db').ready()}"


@pytest.fixture
def theirs(url: str) -> Iterator[SchemaRegistryClient]:
    """confluent-kafka's client."""
    with SchemaRegistryClient({"url": url}) as client:
        yield client


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `millrace` command in this process: to start one for each takes longer than all the rest."""
    result = CliRunner().invoke(cli, arguments)
    error = f"millrace: {result.exception}\n" if isinstance(result.exception, MillraceError) else ""
    assert error or isinstance(result.exception, SystemExit | None), result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr + error)


Connect = Callable[..., ours.SchemaRegistryClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`connect(url)` -> our client, closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(ours.SchemaRegistryClient(*args, **options))


def code(refused: pytest.ExceptionInfo[SchemaRegistryError]) -> tuple[int, int]:
    return refused.value.http_status_code, refused.value.error_code


def test_confluent_kafkas_serializer_and_deserializer_work_with_it(
    url: str, theirs: SchemaRegistryClient
) -> None:
    context = SerializationContext("Clicks", MessageField.VALUE)
    serialize = AvroSerializer(theirs, json.dumps(PAGE_VIEW))
    message = serialize(EVENT, context)
    assert message is not None
    schema_id = theirs.get_latest_version("Clicks-value").schema_id
    assert schema_id is not None
    assert message[:5] == b"\x00" + schema_id.to_bytes(4, "big")
    with SchemaRegistryClient({"url": url}) as another:
        read = AvroDeserializer(another)(message, context)
    assert read is not None
    assert {**read, "header": {**read["header"], "time": 1432155905000}} == EVENT
    with ours.SchemaRegistryClient(url) as client:
        assert client.schema(schema_id) == PAGE_VIEW

    settings = {"auto.register.schemas": False, "use.latest.version": True}
    latest = AvroSerializer(theirs, None, conf=settings)
    assert latest(EVENT, context) == message
    settings = {"auto.register.schemas": False, "normalize.schemas": True}
    assert AvroSerializer(theirs, json.dumps(PAGE_VIEW, indent=2), conf=settings)(EVENT, context) == message


def test_an_id_may_travel_in_a_header(url: str, theirs: SchemaRegistryClient) -> None:
    headers: list[tuple[str, Any]] = []
    written = SerializationContext("Headed", MessageField.VALUE, headers)
    options = {"schema.id.serializer": header_schema_id_serializer}
    message = AvroSerializer(theirs, json.dumps(PAGE_VIEW), conf=options)(EVENT, written)
    assert message is not None
    ((name, guid),) = headers
    assert (name, guid[0], len(guid)) == ("__value_schema_id", 1, 17)
    with SchemaRegistryClient({"url": url}) as another:
        read = AvroDeserializer(another)(message, written)
    assert read is not None
    assert read["header"]["sequence"] == 0


def test_a_producer_may_choose_a_version_by_its_metadata(theirs: SchemaRegistryClient) -> None:
    ids = []
    for major in ("1", "2"):
        properties = MetadataProperties({"application.major.version": major})
        schema = {
            "type": "record",
            "name": "A",
            "fields": [{"name": "x", "type": "int", "default": int(major)}],
        }
        chosen = Schema(json.dumps(schema), metadata=Metadata(None, properties, None))
        ids.append(theirs.register_schema("Chosen-value", chosen))
    for major, schema_id in zip(("1", "2"), ids, strict=True):
        wanted = {"use.latest.with.metadata": {"application.major.version": major}}
        options = {"auto.register.schemas": False, **wanted}
        message = AvroSerializer(theirs, None, conf=options)(
            {"x": 7}, SerializationContext("Chosen", MessageField.VALUE)
        )
        assert message is not None
        assert int.from_bytes(message[1:5], "big") == schema_id


def test_every_call_of_confluent_kafkas_client_is_answered(theirs: SchemaRegistryClient) -> None:
    one = Schema(json.dumps({"type": "record", "name": "A", "fields": []}), "AVRO")
    two = Schema(
        json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": "int", "default": 1}]})
    )
    bad = Schema(json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": "string"}]}))
    first = theirs.register_schema("calls/a", one)
    assert theirs.register_schema("calls/a", one, normalize_schemas=True) == first
    assert theirs.test_compatibility("calls/a", two)
    assert not theirs.test_compatibility("calls/a", bad, verbose=True)
    assert not theirs.test_compatibility_all_versions("calls/a", bad)
    second = theirs.register_schema("calls/a", two)
    assert json.loads(theirs.get_schema(second).schema_str or "") == json.loads(two.schema_str or "")
    assert theirs.lookup_schema("calls/a", two).version == 2
    assert theirs.get_version("calls/a", 1).schema_id == first
    assert theirs.get_versions("calls/a") == [1, 2]
    assert theirs.get_schema_types() == ["AVRO"]
    assert theirs.get_subjects_by_schema_id(first) == ["calls/a"]
    assert [v.version for v in theirs.get_schema_versions(second)] == [2]
    assert theirs.get_subjects(subject_prefix="calls/") == ["calls/a"]
    theirs.set_compatibility("calls/a", "full")
    assert theirs.get_compatibility("calls/a") == "FULL"
    assert theirs.get_compatibility() == "BACKWARD"
    assert theirs.get_config("calls/a").compatibility_level == "FULL"
    assert theirs.delete_config("calls/a").compatibility_level == "FULL"
    assert theirs.update_mode("calls/a", "READONLY") == "READONLY"
    assert theirs.get_mode("calls/a") == "READONLY"
    assert theirs.delete_mode("calls/a") == "READONLY"
    assert theirs.get_global_mode() == "READWRITE"
    assert theirs.get_contexts() == ["."]
    user = Schema(json.dumps({"type": "array", "items": "A"}), "AVRO", [SchemaReference("A", "calls/a", 2)])
    assert theirs.get_referenced_by("calls/a", 2) == []
    referring = theirs.register_schema("calls/b", user)
    assert theirs.get_referenced_by("calls/a", 2) == [referring]
    assert theirs.get_schema(referring).references == user.references
    assert theirs.delete_version("calls/a", 1) == 1
    assert theirs.delete_version("calls/a", 1, permanent=True) == 1
    assert theirs.delete_subject("calls/b") == [1]
    assert theirs.delete_subject("calls/a") == [2]
    assert theirs.get_versions("calls/a", deleted=True) == [2]
    assert theirs.get_versions("calls/a", deleted_only=True) == [2]


def test_confluent_kafkas_client_sees_the_codes_it_compares(theirs: SchemaRegistryClient) -> None:
    theirs.register_schema("codes", Schema(json.dumps(sized(1))))
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.register_schema("codes", Schema(json.dumps(sized(2))))
    assert code(refused) == (409, 40901)
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.register_schema("codes", Schema("{"))
    assert code(refused) == (422, 42201)
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.register_schema("codes", Schema("{}", "JSON"))
    assert code(refused) == (422, 42201)
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.get_latest_version("none")
    assert code(refused) == (404, 40401)
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.get_schema(2**31 - 1)
    assert code(refused) == (404, 40403)
    with pytest.raises(SchemaRegistryError) as refused:
        theirs.lookup_schema("codes", Schema('"int"'))
    assert code(refused) == (404, 40403)


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(url: str) -> None:
    with httpx.Client(base_url=url, timeout=WAIT_S) as http:

        def seconds() -> float:
            began = time.perf_counter()
            assert http.get("/subjects").status_code == 200
            return time.perf_counter() - began

        # Its head and its body are two writes: held back, the second one comes 40 ms later, every time.
        wait_until("one of many comes sooner", lambda: seconds() < 0.03)


def test_our_client_registers_and_reads_and_keeps_what_it_read(
    connect: Connect, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = serve(start, tmp_path / "r.db")
    client = connect(f"http://{registry.ready()}")
    schema_id = client.register("PageView", PAGE_VIEW)
    assert client.register("PageView", PAGE_VIEW) == schema_id
    found_id, version, schema = client.latest("PageView")
    assert (found_id, version, schema) == (schema_id, 1, PAGE_VIEW)
    with pytest.raises(ours.UnknownSchema, match="Schema 99 not found"):
        client.schema(99)
    with pytest.raises(ours.UnknownSchema, match="'none' not found"):
        client.latest("none")
    with pytest.raises(ours.SchemaRefused, match="incompatible"):
        client.register("PageView", {**PAGE_VIEW, "name": "Other"})
    with pytest.raises(ours.SchemaRefused, match="unknown type"):
        client.register("x", "nonsense")
    with pickle.loads(pickle.dumps(client)) as travelled:
        assert travelled.schema(schema_id) == client.schema(schema_id) == PAGE_VIEW

    registry.kill()
    monkeypatch.setattr(ours, "WAITS_S", ())
    assert client.schema(schema_id) == PAGE_VIEW, "an id never changes its meaning, so it is not asked twice"
    with pytest.raises(ours.RegistryUnavailable, match="start it with `millrace registry`") as error:
        client.schema(schema_id + 1)
    assert "\n" not in str(error.value)


def test_our_client_waits_for_a_registry_that_restarts(
    connect: Connect, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to start a registry than a client waits.
    monkeypatch.setattr("millrace_registry.client.WAITS_S", [0.1] * int(WAIT_S / 0.1))
    registry = serve(start, tmp_path / "r.db")
    address = registry.ready()
    client = connect(f"http://{address}")
    schema_id = client.register("s", sized(1))
    registry.kill()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(connect(f"http://{address}", timeout_s=WAIT_S).schema, schema_id)
        serve(start, tmp_path / "r.db", address).ready()
        assert asked.result(timeout=WAIT_S) == sized(1)


def test_our_client_says_when_the_other_side_is_no_registry(connect: Connect, zookeeper: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        ours.SchemaRegistryClient("127.0.0.1:8081")
    with pytest.raises(ours.RegistryUnavailable) as error:
        connect(f"http://{zookeeper}", timeout_s=0.2).schema(1)
    assert "\n" not in str(error.value)


@pytest.mark.soak
def test_after_a_kill_every_acknowledged_id_still_means_its_schema(
    connect: Connect, start: Start, tmp_path: Path
) -> None:
    acknowledged: dict[int, int] = {}
    number = 0
    for _ in range(ROUNDS):
        registry = serve(start, tmp_path / "r.db")
        goal = len(acknowledged) + 25

        def kill(registry: Process = registry, goal: int = goal) -> None:
            wait_until("registrations", lambda: len(acknowledged) >= goal)
            registry.kill()

        with httpx.Client(base_url=f"http://{registry.ready()}") as http, ThreadPoolExecutor(1) as pool:
            pool.submit(kill)
            while True:
                number += 1
                body = {"schema": json.dumps(sized(number))}
                try:
                    answer = http.post(f"/subjects/subject-{number}/versions", json=body)
                except httpx.TransportError:
                    break
                acknowledged[answer.json()["id"]] = number
    registry = serve(start, tmp_path / "r.db")
    client = connect(f"http://{registry.ready()}")
    for schema_id, size in acknowledged.items():
        assert client.schema(schema_id) == sized(size)
    assert client.register("new", sized(10**6)) > max(acknowledged)
    assert registry.stop() == 0


def test_two_processes_on_one_database_give_one_id_for_one_schema(
    connect: Connect, start: Start, tmp_path: Path
) -> None:
    registries = [serve(start, tmp_path / "r.db") for _ in range(2)]
    clients = [connect(f"http://{registry.ready()}") for registry in registries]
    ready = threading.Barrier(2)

    def register(client: ours.SchemaRegistryClient) -> list[int]:
        ids = []
        for number in range(20):
            ready.wait(WAIT_S)
            ids.append(client.register(f"s{number}", sized(number)))
        return ids

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(register, clients)
    assert one == other == list(range(1, 21))


def test_a_taken_port_a_bad_database_and_a_bad_address_are_one_clear_line_each(
    url: str, tmp_path: Path
) -> None:
    taken = url.removeprefix("http://")
    good = f"sqlite:///{tmp_path}/r.db"
    for listen, database, says in (
        (taken, good, f"cannot listen on {taken}: Address already in use; choose another --listen"),
        ("127.0.0.1:0", f"sqlite:///{tmp_path}/no/folder/r.db", "unable to open database file"),
        ("127.0.0.1:0", "mysql://x", "'mysql' is not supported"),
        ("localhost", good, "is not HOST:PORT"),
    ):
        ended = run("registry", "--listen", listen, "--database-url", database)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert says in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr


def test_it_stops_cleanly_while_clients_hold_connections(
    connect: Connect, start: Start, tmp_path: Path
) -> None:
    registry = serve(start, tmp_path / "r.db")
    client = connect(f"http://{registry.ready()}")
    client.register("s", sized(1))
    assert registry.stop() == 0
    assert "Traceback" not in registry.output


def write(folder: Path, name: str, *fields: dict[str, Any], **attributes: Any) -> None:
    schema = {"type": "record", "name": name, "namespace": "millrace.audit", "fields": list(fields)}
    (folder / f"{name}.avsc").write_text(json.dumps({**schema, **attributes}))


def test_plan_says_what_apply_then_does_and_a_repetition_changes_nothing(
    start: Start, tmp_path: Path
) -> None:
    registry = ("--registry", f"http://{serve(start, tmp_path / 'r.db').ready()}")
    subjects = sorted(path.stem for path in SCHEMAS.glob("*.avsc"))
    planned = run("schemas", "plan", str(SCHEMAS), *registry, "--json")
    assert planned.returncode == 0, planned.stderr
    rows = json.loads(planned.stdout)
    assert [(r["subject"], r["state"], r["version"], r["id"]) for r in rows] == [
        (subject, "new", 1, None) for subject in subjects
    ]
    applied = run("schemas", "apply", str(SCHEMAS), *registry, "--json")
    assert applied.returncode == 0, applied.stderr
    ids = {row["subject"]: row["id"] for row in json.loads(applied.stdout)}
    assert len(set(ids.values())) == len(subjects)
    for command in ("plan", "apply"):
        again = run("schemas", command, str(SCHEMAS), *registry, "--json")
        assert {r["state"] for r in json.loads(again.stdout)} == {"unchanged"}
        assert {r["subject"]: r["id"] for r in json.loads(again.stdout)} == ids
    shown = run("schemas", "plan", str(SCHEMAS), *registry)
    assert ["PageView", "unchanged", "1", str(ids["PageView"])] in map(str.split, shown.stdout.splitlines())


def test_apply_registers_nothing_when_one_schema_would_be_refused(
    connect: Connect, start: Start, tmp_path: Path
) -> None:
    url = f"http://{serve(start, tmp_path / 'r.db').ready()}"
    folder = tmp_path / "schemas"
    folder.mkdir()
    write(folder, "A", {"name": "x", "type": "int"})
    write(folder, "B", {"name": "x", "type": "int"})
    assert run("schemas", "apply", str(folder), "--registry", url).returncode == 0
    write(folder, "A", {"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0})
    write(folder, "B", {"name": "x", "type": "string"})
    write(folder, "C", {"name": "x", "type": "int"})

    ended = run("schemas", "plan", str(folder), "--registry", url, "--json")
    assert ended.returncode == 1
    rows = {row["subject"]: row for row in json.loads(ended.stdout)}
    assert {subject: row["state"] for subject, row in rows.items()} == {
        "A": "new version",
        "B": "incompatible",
        "C": "new",
    }
    assert rows["B"]["reasons"] == ["the new schema cannot read version 1: x: string cannot read int"]
    assert ended.stderr.startswith("millrace: 1 of 3 schemas would be refused")

    checked = run("schemas", "check", str(folder), "--registry", url)
    assert checked.returncode == 1
    assert f"{folder}/B.avsc: the new schema cannot read version 1" in checked.stdout

    ended = run("schemas", "apply", str(folder), "--registry", url)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("millrace: nothing was registered: ")
    assert f"{folder}/B.avsc: the new schema cannot read version 1" in ended.stderr
    client = connect(url)
    assert client.versions("A") == [1]
    assert client.versions("C") == []

    write(folder, "B", {"name": "x", "type": "long"})
    ended = run("schemas", "apply", str(folder), "--registry", url, "--json")
    assert [(r["subject"], r["version"]) for r in json.loads(ended.stdout)] == [("A", 2), ("B", 2), ("C", 1)]


def test_commands_without_a_folder_schemas_or_a_registry_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "WAITS_S", (0.01,))
    for arguments, says in (
        (["check", str(tmp_path / "none")], "no folder"),
        (["check", str(tmp_path)], "no .avsc file in"),
        (["plan", str(SCHEMAS), "--registry", "http://127.0.0.1:1"], "start it with `millrace registry`"),
        (["apply", str(SCHEMAS), "--registry", "127.0.0.1:1"], "write http://HOST:PORT"),
    ):
        ended = run("schemas", *arguments)
        assert ended.returncode == 1
        assert ended.stderr.startswith("millrace: ")
        assert says in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_a_command_as_a_process_ends_like_that_too(tmp_path: Path) -> None:
    ended = run_millrace("schemas", "check", str(tmp_path / "none"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("millrace: no folder")
    assert ended.stderr.count("\n") == 1


def test_errors_of_the_client_are_errors_for_people() -> None:
    for kind in (ours.RegistryUnavailable, ours.UnknownSchema, ours.SchemaRefused):
        assert issubclass(kind, MillraceError)
