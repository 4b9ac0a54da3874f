"""What is installed, and how Airflow finds this package: as a provider, as a plugin, as a plugins folder."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest

from millrace_airflow.installation import InstallationError, check_installation
from millrace_airflow.plugin import MillracePlugin
from millrace_airflow.provider_info import get_provider_info
from tests.support import REPOSITORY

PLUGINS = REPOSITORY / "plugins"


def test_the_provider_info_fits_airflows_own_schema() -> None:
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_the_provider_info_names_is_there() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                import_module(module)
    [connection] = info["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")
    assert getattr(import_module(module), name).conn_type == connection["connection-type"]


def test_every_field_of_the_connection_form_is_a_setting() -> None:
    from millrace_airflow.settings import MillraceSettings

    [connection] = get_provider_info()["connection-types"]
    settings = set(MillraceSettings.__dataclass_fields__) - {"bootstrap"}  # the connection's host
    assert set(connection["conn-fields"]) == settings


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr("millrace_airflow.installation.version", version)


def test_two_distributions_that_write_the_same_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, pyspark="4.3.0", pyspark_client="4.2.0")
    with pytest.raises(InstallationError, match=r"pip uninstall pyspark-client .*pyspark==4\.3\.0$"):
        check_installation()
    with pytest.raises(InstallationError):
        MillracePlugin.on_load()


@pytest.mark.parametrize("versions", [{}, {"pyspark": "4.3.0"}, {"pyspark_client": "4.2.0"}])
def test_either_one_alone_is_accepted(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    pretend(monkeypatch, **versions)
    check_installation()


def test_this_installation_is_accepted() -> None:
    check_installation()


LOAD_PLUGINS = """
import json, sys
from airflow._shared.plugins_manager import _load_plugins_from_plugin_directory as load
plugins, errors = load(plugins_folder=sys.argv[1], load_examples=False, ignore_file_syntax=sys.argv[2])
bare = sorted(name for name in ("errors", "job", "plan", "settings", "provider_info") if name in sys.modules)
print(json.dumps({"plugins": [plugin.name for plugin in plugins], "errors": errors, "bare": bare}))
"""


def loaded_from_folder(syntax: str, path: Path) -> dict[str, object]:
    """What Airflow finds in plugins/, in a process that knows this package only by `path`."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_PLUGINS, str(PLUGINS), syntax],
        capture_output=True,
        text=True,
        cwd=path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("syntax", ["glob", "regexp"])
def test_airflow_finds_one_plugin_in_the_folder_and_imports_no_module_by_its_bare_name(
    syntax: str, tmp_path: Path
) -> None:
    installed = "millrace" in importlib.metadata.entry_points(group="airflow.plugins").names
    found = loaded_from_folder(syntax, tmp_path)
    assert found == {"plugins": [] if installed else ["millrace"], "errors": {}, "bare": []}


def test_the_folder_steps_aside_where_the_package_is_installed(tmp_path: Path) -> None:
    metadata = tmp_path / "millrace-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: millrace\nVersion: 0.0.0\n")
    (metadata / "entry_points.txt").write_text(
        "[airflow.plugins]\nmillrace = millrace_airflow.plugin:MillracePlugin\n"
    )
    assert loaded_from_folder("glob", tmp_path)["plugins"] == []
