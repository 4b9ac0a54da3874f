"""Options that `millrace agent` refuses before it accepts any message, and those that its page shows."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import ConfigError
from tests.support import REPOSITORY


@pytest.mark.parametrize(
    ("words", "topic"),
    [
        (["--subject", "record"], "TOPIC"),
        (["--subject", "PageView=record"], "PageView"),
        (["--subject", "record", "--subject", "Known=s", "--follow", "PageView=/log"], "PageView"),
    ],
)
def test_a_subject_that_only_a_record_names_is_refused_at_the_start(
    words: list[str], topic: str, tmp_path: Path
) -> None:
    places = ["--cluster", "dc1", "--bootstrap", "127.0.0.1:1", "--registry", "http://127.0.0.1:1"]
    spool = tmp_path / "spool"
    result = CliRunner().invoke(cli, ["agent", *places, "--service", "shop", "--spool", str(spool), *words])
    assert isinstance(result.exception, ConfigError), result.output
    assert f"give --subject {topic}=SUBJECT" in str(result.exception)
    assert not spool.exists()


def test_the_pod_of_the_page_is_restricted_and_keeps_the_spool_on_a_persistent_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", (REPOSITORY / "docs/agent.md").read_text(), re.M | re.S)
    spec = yaml.safe_load(block)["spec"]
    (agent,) = spec["initContainers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in agent["volumeMounts"]}
    for variable in agent["env"]:
        if "value" in variable:
            assert "secret" in mounts[str(Path(variable["value"]).parent)]
        monkeypatch.setenv(variable["name"], "of the Secret")
    command, *words = agent["args"]
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    given = found.make_context(command, words).params
    assert given["registry"] == "of the Secret"
    assert "persistentVolumeClaim" in mounts[str(given["spool"].parent)]
    assert given["listen"] == "127.0.0.1:8083"
    build = (REPOSITORY / "deploy/container/Containerfile").read_text()
    assert f"--tag {agent['image']} " in build
    assert f"USER 10001:{spec['securityContext']['fsGroup']}\n" in build
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["initContainers"], *spec["containers"]]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
