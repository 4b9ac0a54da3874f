"""Finding spark-submit, and what becomes of what a job prints. The job here is a shell script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace_spark.jobs.submit
from millrace.errors import MillraceError
from millrace_spark.jobs.submit import submit
from millrace_warehouse.commands.hours import parse_hours
from tests.support import start_for_the_test_run, wait_until


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the spark-submit of the installed PySpark."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(millrace_spark.jobs.submit, "spark_home", lambda: tmp_path)
    return script


def run(lines: list[str], master: str = "local[2]", **options: Any) -> Any:
    return submit("load", {"topics": ["A"]}, master=master, on_line=lines.append, **options)


SHOWS_ARGUMENTS = f"""#!/bin/sh
exec {sys.executable} - "$@" <<'END'
import json, os, sys
lines = open(sys.argv[sys.argv.index('--properties-file') + 1]).read().splitlines()
print(json.dumps({{'result': [sys.argv[1:], dict(line.split('=', 1) for line in lines), os.getcwd()]}}))
END
"""


def test_the_result_is_the_json_line_and_other_lines_are_told_as_they_come(spark_submit: Path) -> None:
    # spark-submit passes on what a driver in Python writes to standard error through its standard output.
    spark_submit.write_text(
        '#!/bin/sh\necho "step: a"\necho \'{"result": [1]}\'\necho "step: b" >&2\necho more\n'
    )
    lines: list[str] = []
    assert run(lines) == [1]
    assert sorted(lines) == ["more", "step: a", "step: b"]


def test_a_step_is_told_while_the_job_still_runs(spark_submit: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spark_submit.write_text(
        f"#!/bin/sh\necho 'step: a'\nuntil [ -e {seen} ]; do sleep 0.02; done\necho '{{\"result\": 1}}'\n"
    )
    # Without the touch the job would not end.
    answer = submit("load", {}, master="local[2]", on_line=lambda line: seen.touch())
    assert answer == 1


def test_a_part_of_a_resident_job_s_answer_is_passed_on_while_the_job_still_runs(
    spark_submit: Path, tmp_path: Path
) -> None:
    seen, lines, parts = tmp_path / "seen", list[str](), list[Any]()
    spark_submit.write_text(
        f"""#!/bin/sh
echo '{{"part": {{"load": 1}}}}'
echo more
until [ -e {seen} ]; do sleep 0.02; done
echo '{{"result": []}}'
"""
    )

    def on_part(part: Any) -> None:
        parts.append(part)
        seen.touch()  # without it the job would not end

    assert run(lines, on_part=on_part) == []
    assert (parts, lines) == ([{"load": 1}], ["more"])


def test_ctrl_c_in_a_terminal_reaches_a_job_but_not_a_resident_one(spark_submit: Path) -> None:
    spark_submit.write_text("#!/bin/sh\nprintf '{\"result\": %s}\\n' $(cut -d' ' -f6 /proc/$$/stat)\n")
    assert run([]) == os.getsid(0)
    assert run([], on_part=lambda part: None) != os.getsid(0)


def test_a_job_s_own_error_is_the_command_s_error(spark_submit: Path) -> None:
    spark_submit.write_text('#!/bin/sh\necho \'{"error": "no topic A: create it"}\'\nexit 1\n')
    with pytest.raises(MillraceError, match=r"^no topic A: create it$"):
        run([])


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
def test_a_job_that_dies_is_told_with_its_last_words(spark_submit: Path, ending: str) -> None:
    spark_submit.write_text(f"#!/bin/sh\necho 'out of memory' >&2\n{ending}\n")
    with pytest.raises(MillraceError, match=r"`load` ended with exit code -?\d+: out of memory"):
        run([])


def test_a_stack_trace_is_told_by_its_cause_and_a_machine_without_a_name_with_what_to_do(
    spark_submit: Path,
) -> None:
    cause = "Caused by: java.net.UnknownHostException: vm: Name\\n\\tat x\\n\\t... 17 more"
    trace = f"Exception in thread main\\n{cause}"
    spark_submit.write_text(f"#!/bin/sh\nprintf '{trace}\\n' >&2\nexit 1\n")
    with pytest.raises(
        MillraceError, match=r"exit code 1: Caused by: java.*vm: Name; .*add it to /etc/hosts"
    ):
        run([])


def test_a_result_of_a_job_that_failed_afterwards_does_not_count(spark_submit: Path) -> None:
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": [1]}'\nexit 1\n")
    with pytest.raises(MillraceError, match="exit code 1"):
        run([])


def test_workers_and_driver_are_this_python_and_the_settings_one_file(spark_submit: Path) -> None:
    spark_submit.write_text(
        f"#!/bin/sh\nexec {sys.executable} - \"$@\" <<'END'\n"
        "import json, os, sys\n"
        "names = ('PYSPARK_PYTHON', 'PYSPARK_DRIVER_PYTHON', 'SPARK_HOME')\n"
        "read = json.load(open(sys.argv[-2]))\n"
        "print(json.dumps({'result': [sys.argv[1:], read, [os.environ[name] for name in names]]}))\nEND\n"
    )
    arguments, settings, environment = run([])
    assert environment == [sys.executable, sys.executable, str(spark_submit.parents[1])]
    assert arguments[:2] == ["--master", "local[2]"]
    assert arguments[-4].endswith("millrace_spark/jobs/script.py")
    assert arguments[-3] == "load"
    assert settings == {"topics": ["A"]}
    assert not any(Path(file).exists() for file in arguments[-2:])


def test_settings_may_name_every_hour_of_a_year(spark_submit: Path) -> None:
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": 1}'\n")
    hours = parse_hours([], "2015-01-01", "2016-01-01")
    assert submit("reload", {"hours": hours}, master="local[2]", on_line=print) == 1


def test_a_job_whose_output_nobody_takes_any_more_runs_to_its_end(spark_submit: Path) -> None:
    spark_submit.write_text(
        "#!/bin/sh\nseq 100000 >&2\necho 'step: a'\nseq 100000 >&2\necho '{\"result\": 1}'\n"
    )

    def closed(line: str) -> None:
        raise BrokenPipeError

    assert submit("load", {}, master="local[2]", on_line=closed) == 1


COMMAND = """
import sys, millrace_spark.jobs.submit
from pathlib import Path
millrace_spark.jobs.submit.spark_home = lambda: Path(sys.argv[1])
millrace_spark.jobs.submit.submit("load", {}, master="local[2]", on_line=print)
"""


def test_the_folder_of_a_killed_command_is_deleted_by_a_later_one_and_that_of_a_running_one_stays(
    spark_submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spark_submit.write_text(
        '#!/bin/sh\nfor file; do :; done\nmkdir "$(dirname "$file")/rows"\nexec sleep 600\n'
    )
    folders = list[Path]()
    commands = list[subprocess.Popen[bytes]]()
    for _ in range(2):
        command = [sys.executable, "-c", COMMAND, str(tmp_path)]
        commands.append(start_for_the_test_run(command))
        wait_until("its job runs", lambda: len([*tmp_path.glob("millrace-job-*/rows")]) == len(commands))
        folders += {path.parent for path in tmp_path.glob("millrace-job-*/rows")} - {*folders}
    killed, running = folders
    commands[0].kill()
    commands[0].wait()
    (new := tmp_path / "millrace-job-new").mkdir()
    for folder in folders:
        os.utime(folder, (0, 0))
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": 1}'\n")
    assert run([]) == 1
    assert sorted(tmp_path.glob("millrace-job-*")) == sorted([running, new])
    assert not killed.exists()
    commands[1].kill()
    commands[1].wait()


def test_a_link_of_another_user_makes_no_command_delete_files_of_its_own_user(
    spark_submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": 1}'\n")
    mine = tmp_path / "project" / "settings.json"
    mine.parent.mkdir()
    mine.touch()
    os.utime(mine.parent, (0, 0))
    link = tmp_path / "millrace-job-evil"
    link.symlink_to(mine.parent)
    os.utime(link, (0, 0), follow_symlinks=False)
    assert run([]) == 1
    assert mine.exists()


def test_settings_which_may_hold_passwords_are_in_files_of_this_user_alone(spark_submit: Path) -> None:
    spark_submit.write_text(
        "#!/bin/sh\nfor file; do :; done\n"
        'echo "{\\"result\\": \\"$(stat -c %a "$(dirname "$file")"/* | sort -u)\\"}"\n'
    )
    assert run([]) == "600"


def test_no_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MillraceError, match="no Java in JAVA_HOME"):
        run([])


def test_an_old_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MillraceError, match="17"):
        run([])


def test_settings_of_the_user_come_before_ours_and_a_cluster_s_driver_binds_where_spark_says(
    spark_submit: Path,
) -> None:
    spark_submit.write_text(SHOWS_ARGUMENTS)
    given = {"spark.executor.cores": "1", "spark.log.level": "WARN"}
    arguments, settings, folder = run([], "yarn", conf=given)
    assert arguments[:2] == ["--master", "yarn"]
    assert settings.items() >= given.items()
    assert settings["spark.pyspark.driver.python"] == sys.executable
    assert "spark.driver.bindAddress" not in settings
    assert folder == str(Path.cwd())


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077", "spark://localhost:7077"])
def test_a_driver_whose_master_is_on_this_machine_listens_on_the_loopback_address_only(
    spark_submit: Path, master: str
) -> None:
    spark_submit.write_text(SHOWS_ARGUMENTS)
    _, settings, _ = run([], master)
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    # On a cluster another Python may run the tasks, without this package.
    assert ("spark.python.daemon.module" in settings) == (master == "local[2]")


def test_a_packed_environment_is_the_python_of_the_tasks_and_has_a_stand_in_beside_the_driver(
    spark_submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_submit.write_text(
        SHOWS_ARGUMENTS.replace(
            "os.getcwd()", "os.popen('./env/bin/python -c \"import sys; print(sys.executable)\"').read()"
        )
    )
    (tmp_path / "packed.tar.gz").touch()
    monkeypatch.chdir(tmp_path)
    _, settings, stand_in = run(
        [], "spark://far:7077", archives=["packed.tar.gz#env", "hdfs://far/data.zip#data"]
    )
    assert settings["spark.archives"] == f"{tmp_path}/packed.tar.gz\\#env,hdfs\\://far/data.zip\\#data"
    assert settings["spark.pyspark.python"] == "./env/bin/python"
    assert stand_in.strip() == sys.executable


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"archives": ["packed.tar.gz"]}, "is not FILE#NAME"),
        ({"archives": ["/no/such/file.tar.gz#env"]}, "no file /no/such/file.tar.gz"),
    ],
)
def test_what_cannot_be_submitted_is_one_clear_line(
    spark_submit: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(MillraceError, match=said) as caught:
        run([], **options)
    assert "\n" not in str(caught.value)
