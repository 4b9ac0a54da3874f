"""Options that a web service refuses before it starts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from millrace.service.options import door_options


@pytest.mark.parametrize("option", ["--access", "--certificate", "--key"])
def test_an_empty_name_of_a_file_does_not_open_the_door(option: str) -> None:
    @click.command()
    @door_options
    def serve(**_: str) -> None:
        click.echo("open")

    runner = CliRunner()
    assert runner.invoke(serve).output == "open\n"
    refused = runner.invoke(serve, [option, ""])
    assert refused.exit_code == 2
    assert "the name of the file is empty" in refused.output
