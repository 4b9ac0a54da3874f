"""In a folder with a deployment file no address has to be typed, and none is taken that was not meant."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from millrace.cli import cli, main
from millrace.errors import ConfigError

DEPLOYMENT = """
registry = "127.0.0.1:8881"
auditor = "127.0.0.1:8882"
zookeeper = "127.0.0.1:2888"
warehouse = "lake"
topics_file = "topics.toml"
[clusters.dc1]
brokers = ["127.0.0.1:9991"]
[clusters.dc2]
bootstrap = "kafka-1:9992,kafka-2:9992"
[clusters.offline]
brokers = ["127.0.0.1:9993", "127.0.0.1:9994"]
[clusters.offline.mirror]
origins = ["dc1", "dc2"]
topics = ["*"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "millrace.toml").write_text(DEPLOYMENT)
    monkeypatch.chdir(tmp_path)
    for name in ("REGISTRY", "AUDITOR", "ZOOKEEPER", "TOPICS_FILE"):
        monkeypatch.delenv(f"MILLRACE_{name}", raising=False)
    return tmp_path


def values(*words: str) -> dict[str, object]:
    """Return the values of a command's options, without running it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="millrace")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None
        command, words = found, words[1:]
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context)
    return dict(command.make_context("command", [*words], parent=context).params)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_a_load_takes_warehouse_brokers_registry_auditor_and_topics_from_the_file(folder: Path) -> None:
    found = values("load", "PageView")
    assert found["bootstrap"] == "127.0.0.1:9993,127.0.0.1:9994"
    assert (found["registry"], found["auditor"]) == ("http://127.0.0.1:8881", "http://127.0.0.1:8882")
    assert (found["warehouse"], found["policies"]) == ("lake", "topics.toml")


def test_commands_that_read_take_the_aggregate_cluster(folder: Path) -> None:
    for words in (["topics", "list"], ["consume", "T"], ["groups", "describe", "G"], ["brokers", "list"]):
        assert values(*words)["bootstrap"] == "127.0.0.1:9993,127.0.0.1:9994"


def test_the_name_of_a_cluster_stands_for_its_brokers(folder: Path) -> None:
    assert values("produce", "T", "--bootstrap", "dc1")["bootstrap"] == "127.0.0.1:9991"
    assert values("consume", "T", "--bootstrap", "dc2")["bootstrap"] == "kafka-1:9992,kafka-2:9992"
    assert values("consume", "T", "--bootstrap", "other:1")["bootstrap"] == "other:1"
    assert values("erase", "T", "--log", "dc1", "--log", "other:1")["logs"] == ("127.0.0.1:9991", "other:1")


@pytest.mark.parametrize(
    "words",
    ["produce T", "topics create T", "topics delete T", "groups seek G T --to end", "brokers drain 1"],
)
def test_a_command_that_changes_a_cluster_asks_which(folder: Path, words: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert "Name a cluster of millrace.toml (dc1, dc2, offline), or give HOST:PORT." in result.output


def test_a_command_line_overrides_a_variable_and_both_override_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_REGISTRY", "http://of-the-variable")
    assert values("load", "T")["registry"] == "http://of-the-variable"
    assert values("load", "T", "--registry", "http://typed")["registry"] == "http://typed"


def test_an_option_that_asks_for_more_work_is_not_filled_in(folder: Path) -> None:
    assert values("verify", "T")["bootstrap"] is None
    assert values("verify", "T")["auditor"] == "http://127.0.0.1:8882"
    assert values("schemas", "plan", "schemas")["bootstrap"] is None
    assert values("schemas", "check", "schemas")["url"] is None


def test_a_server_takes_no_address_from_the_file(folder: Path) -> None:
    for words in (["audit-reader", "--cluster", "dc1"], ["auditor", "--origins", "dc1"]):
        result = run(*words)
        assert result.exit_code == 2
        assert "Missing option '--bootstrap'" in result.output
    assert values("registry")["zookeeper"] is None


def test_a_missing_address_names_the_file_that_would_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, is_named in (
        (["load", "T"], True),
        (["init", "schema", "T", "--from-topic"], False),
        (["auditor"], False),
    ):
        monkeypatch.setattr("sys.argv", ["millrace", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        printed = capsys.readouterr().err
        assert "Missing option" in printed
        assert ("run the command in the folder of your millrace.toml" in printed) == is_named


def test_help_shows_what_a_command_would_take(folder: Path) -> None:
    assert "http://127.0.0.1:8881" in run("load", "--help").stdout
    (folder / "millrace.toml").unlink()
    assert "http://127.0.0.1:8881" not in run("load", "--help").stdout


def test_with_security_registry_and_auditor_are_asked_by_https(folder: Path) -> None:
    (folder / "millrace.toml").write_text('security = "secrets"\n' + DEPLOYMENT)
    assert values("load", "T")["registry"] == "https://127.0.0.1:8881"


def test_without_an_aggregate_cluster_every_command_asks_which(folder: Path) -> None:
    (folder / "millrace.toml").write_text('[clusters.dc1]\nbrokers = ["127.0.0.1:9991"]\n')
    result = run("topics", "list")
    assert result.exit_code == 2
    assert "Name a cluster of millrace.toml (dc1), or give HOST:PORT." in result.output


def test_a_file_that_is_no_deployment_is_named(folder: Path) -> None:
    (folder / "millrace.toml").write_text("clusterz = 1\n")
    error = run("topics", "list").exception
    assert isinstance(error, ConfigError)
    assert str(error) == "millrace.toml: unknown key 'clusterz'; did you mean 'clusters'?"
    assert run("--help").exit_code == 0
