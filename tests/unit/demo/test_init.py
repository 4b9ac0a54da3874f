"""`millrace init`: what is made can be used as it stands, and nothing of somebody's is overwritten."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace import config
from millrace.deployment_file import UpConfig
from millrace.errors import MillraceError
from millrace.topics_file import read_policies
from millrace_demo.init import init
from millrace_demo.up import aggregate_of
from millrace_registry.directory import check
from tests.support import run_python


def run(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(init, [*words, "--folder", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_event_has_a_schema_that_the_registry_takes_and_a_producer_that_compiles(tmp_path: Path) -> None:
    said = run(tmp_path, "event", "OrderPlaced")
    schema = json.loads((tmp_path / "schemas" / "OrderPlaced.avsc").read_text())
    assert schema["name"] == "OrderPlaced"
    assert schema["fields"][0]["name"] == "header"
    assert check(tmp_path / "schemas")
    ast.parse((tmp_path / "order_placed.py").read_text())
    assert "millrace topics create OrderPlaced --partitions 2 --bootstrap 127.0.0.1:9192" in said
    assert f"python {tmp_path}/order_placed.py dc2 127.0.0.1:9292" in said


def test_the_producer_says_how_it_is_called(tmp_path: Path) -> None:
    run(tmp_path, "event", "OrderPlaced")
    done = run_python(str(tmp_path / "order_placed.py"), timeout_s=60, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("python order_placed.py CLUSTER BOOTSTRAP [REGISTRY]\n")


def test_the_next_commands_name_the_registry_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://registry.example:8181"
    said = run(tmp_path, "event", "OrderPlaced", "--registry", url)
    assert f"  millrace schemas apply {tmp_path}/schemas --registry {url}\n" in said
    assert f"  python {tmp_path}/order_placed.py dc1 127.0.0.1:9192 {url}\n" in said
    monkeypatch.setenv("MILLRACE_REGISTRY", url)  # the commands read it themselves
    said = run(tmp_path, "event", "Signup")
    assert f"  millrace schemas apply {tmp_path}/schemas\n" in said
    assert f"  python {tmp_path}/signup.py dc1 127.0.0.1:9192\n" in said


def test_a_deployment_mirrors_every_topic_and_gets_the_topic_of_a_new_event(tmp_path: Path) -> None:
    run(tmp_path, "deployment")
    file = tmp_path / "millrace.toml"
    deployment = config.load(UpConfig, file)
    mirror = deployment.clusters[aggregate_of(deployment)].mirror
    assert mirror is not None
    assert [*mirror.topics] == ["*"]
    for name in ("OrderPlaced", "Signup"):
        run(tmp_path, "event", name)
    deployment = config.load(UpConfig, file)
    both = {"OrderPlaced": 2, "Signup": 2}
    assert [cluster.topics for cluster in deployment.clusters.values()] == [both, both, {}]


def test_a_topic_that_the_deployment_makes_is_to_be_created_only_where_that_runs_already(
    tmp_path: Path,
) -> None:
    run(tmp_path, "deployment")
    first, _, running = run(tmp_path, "event", "Signup").partition("Where it runs already, first:\n")
    assert "topics create" not in first
    assert first.endswith(
        f"  millrace schemas apply {tmp_path}/schemas --registry http://127.0.0.1:8081\n"
        f"  python {tmp_path}/signup.py dc1 127.0.0.1:9192\n"
        f"  python {tmp_path}/signup.py dc2 127.0.0.1:9292\n"
        "`millrace up` creates the topic when it starts. "
    )
    assert running.count("millrace topics create Signup --partitions 2 --bootstrap 127.0.0.1:9") == 2


def test_a_mirror_that_names_its_topics_gets_the_new_one(tmp_path: Path) -> None:
    run(tmp_path, "deployment")
    file = tmp_path / "millrace.toml"
    file.write_text(file.read_text().replace('topics = ["*"]', 'topics = ["Old"]'))
    run(tmp_path, "event", "New")
    mirror = config.load(UpConfig, file).clusters["offline"].mirror
    assert mirror is not None
    assert [*mirror.topics] == ["New", "Old"]


def test_a_topic_that_a_deployment_names_already_is_not_named_twice(tmp_path: Path) -> None:
    run(tmp_path, "deployment")
    file = tmp_path / "millrace.toml"
    text = file.read_text().replace("topics = {}", "topics = { PageView = 2, New=4 }")
    file.write_text(text.replace('topics = ["*"]', 'topics = ["New", "audit"]'))
    run(tmp_path, "event", "New")
    clusters = config.load(UpConfig, file).clusters
    assert [cluster.topics["New"] for cluster in clusters.values() if cluster.mirror is None] == [4, 4]
    assert clusters["offline"].mirror is not None
    assert [*clusters["offline"].mirror.topics] == ["New", "audit"]


def test_a_deployment_in_somebody_s_own_hand_stays_as_it_is_and_they_are_told(tmp_path: Path) -> None:
    text = '[clusters.dc1]\nbrokers = ["h:1"]\ntopics.Old = 1\n[clusters.all.mirror]\norigins = ["dc1"]\n'
    (tmp_path / "millrace.toml").write_text(text)
    said = run(tmp_path, "event", "New")
    assert (tmp_path / "millrace.toml").read_text() == text
    assert "add New = 2 to the `topics` of dc1" in said
    assert "--bootstrap h:1" in said


def test_a_dag_loads_the_topics_of_the_schemas_and_those_that_come_later(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="make one with `millrace init event"):
        run(tmp_path, "dag")
    run(tmp_path, "event", "OrderPlaced")
    run(tmp_path, "dag")
    assert {file.name for file in (tmp_path / "dags").iterdir()} == {
        "warehouse_load.py",
        "warehouse_upkeep.py",
    }
    run(tmp_path, "event", "Signup")
    assert [*read_policies(tmp_path / "topics.toml")] == ["OrderPlaced", "Signup"]
    assert (tmp_path / "airflow.env").read_text().splitlines() == [
        f"MILLRACE_TOPICS_FILE={tmp_path}/topics.toml",
        f"MILLRACE_SCHEMAS={tmp_path}/schemas",
        f"AIRFLOW__CORE__DAGS_FOLDER={tmp_path}/dags",
    ]


def test_airflow_gets_the_connection_to_the_deployment_of_the_folder(tmp_path: Path) -> None:
    for what in (["deployment"], ["event", "OrderPlaced"], ["dag"]):
        run(tmp_path, *what)
    words = shlex.split((tmp_path / "airflow.env").read_text())
    variables = dict(word.split("=", 1) for word in words)
    assert json.loads(variables["AIRFLOW_CONN_MILLRACE_DEFAULT"]) == {
        "conn_type": "millrace",
        "host": "127.0.0.1:9392,127.0.0.1:9393",
        "extra": {
            "registry": "http://127.0.0.1:8081",
            "auditor": "http://127.0.0.1:8082",
            "warehouse": f"{tmp_path}/warehouse",
            "origins": {"dc1": "127.0.0.1:9192", "dc2": "127.0.0.1:9292"},
        },
    }


def test_a_topic_that_an_expression_matches_gets_a_table_and_so_its_tasks(tmp_path: Path) -> None:
    run(tmp_path, "event", "First")
    run(tmp_path, "dag")
    (tmp_path / "topics.toml").write_text("[topics_matching.'.*']\nproof = 'carried'\n")
    run(tmp_path, "event", "Signup")
    policies = read_policies(tmp_path / "topics.toml")
    assert ([*policies], policies["Signup"].proof) == (["Signup"], "carried")


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("orders-json", "OrdersJson"),
        ("shop.orders.v1", "ShopOrdersV1"),
        ("7.days", "T7Days"),
        ("_raw", "_raw"),
        (".a", "A"),
    ],
)
def test_a_topic_may_have_any_name_that_kafka_takes(tmp_path: Path, topic: str, record: str) -> None:
    run(tmp_path, "deployment")
    run(tmp_path, "event", "First")
    run(tmp_path, "dag")
    run(tmp_path, "event", topic)
    (file,) = (file for file in check(tmp_path / "schemas") if file.topic == topic)
    assert (file.problem, file.subject, file.json["name"]) == (None, topic, record)
    clusters = config.load(UpConfig, tmp_path / "millrace.toml").clusters
    assert all(topic in clusters[name].topics for name in ("dc1", "dc2"))
    assert [*read_policies(tmp_path / "topics.toml")] == ["First", topic]
    (source,) = (file.read_text() for file in tmp_path.glob("*.py") if file.name != "first.py")
    assert f'producer.send("{topic}"' in source
    ast.parse(source)


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    run(tmp_path, "event", "OrderPlaced")
    mine = tmp_path / "schemas" / "OrderPlaced.avsc"
    mine.write_text("mine")
    with pytest.raises(MillraceError, match="exists already"):
        run(tmp_path, "event", "OrderPlaced")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "..", "../x", "order placed", "é", "a" * 250])
def test_a_name_that_no_topic_may_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MillraceError, match="is not a topic name"):
        run(tmp_path, "event", name)
    assert [*tmp_path.iterdir()] == []


def test_an_event_whose_table_is_another_s_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    run(tmp_path, "event", "orders_json")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        MillraceError, match=r"would share the table millrace\.orders_json with .*orders_json"
    ):
        run(tmp_path, "event", "orders-json")
    assert sorted(tmp_path.rglob("*")) == before
