"""Options that `millrace agent` refuses before it accepts any message."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import ConfigError


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
