"""Options that `millrace demo` refuses before it starts anything."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.errors import MillraceError
from millrace_demo import commands, run
from millrace_demo.commands import demo
from millrace_demo.run import DemoOptions


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    done = CliRunner().invoke(demo, ["--keep", str(tmp_path)])
    assert isinstance(done.exception, MillraceError)
    assert str(done.exception).startswith(f"--keep {tmp_path} is not empty: name a new folder")


@pytest.mark.parametrize("option", ["--events", "--hours"])
def test_a_demo_of_nothing_is_refused(option: str) -> None:
    assert CliRunner().invoke(demo, [option, "0"]).exit_code == 2


@pytest.mark.parametrize("how", ["--secure", "MILLRACE_CLIENT"])
def test_java_services_with_tls_are_refused_and_leave_nothing(tmp_path: Path, how: str) -> None:
    folder, client = tmp_path / "new", tmp_path / "client.toml"
    client.write_text('protocol = "SSL"\nca = "ca.pem"\n')
    words = ["--java-services", str(tmp_path), "--events", "1", "--keep", str(folder)]
    if how == "--secure":
        done = CliRunner().invoke(demo, [*words, how])
    else:
        done = CliRunner().invoke(demo, words, env={how: str(client)})
    reason = (
        "--java-services uses neither TLS nor logins: omit --secure, MILLRACE_CLIENT and the deployment's"
        " `security`"
    )
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, f"DEMO FAILED: {reason}")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "interrupted"), (MillraceError("no Java"), "no Java")]
)
@pytest.mark.parametrize("started", [True, False])
def test_a_demo_that_ends_early_says_why_and_names_logs_only_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str, started: bool
) -> None:
    def fail(options: DemoOptions, console: object) -> None:
        (options.scratch / "logs").mkdir()
        if started:
            (options.scratch / "logs" / "registry.log").touch()
        raise error

    monkeypatch.setattr(run, "run_demo", fail)
    monkeypatch.setattr(commands, "interruptible", nullcontext)
    folder = tmp_path / "new"
    done = CliRunner().invoke(demo, ["--keep", str(folder)])
    logs = f"; logs are in {folder / 'logs'}" if started else ""
    assert (done.exit_code, done.stdout) == (1, f"DEMO FAILED: {said}{logs}\n")
    assert folder.exists() == started
