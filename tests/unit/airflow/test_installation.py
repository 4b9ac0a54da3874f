"""Installed files, and how Airflow finds this package: as a provider, as a plugin, as a plugins folder."""

from __future__ import annotations

import importlib.metadata
import json
from importlib import import_module
from pathlib import Path

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest

from millrace.installation import DISTRIBUTION
from millrace_airflow.installation import InstallationError, check_installation
from millrace_airflow.plugin import MillracePlugin
from millrace_airflow.provider_info import get_provider_info
from tests.support import REPOSITORY, run_python

PLUGINS = REPOSITORY / "plugins"


def test_the_provider_info_fits_airflows_own_schema() -> None:
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_provider_is_named_as_the_distribution_is() -> None:
    # Airflow warns of a provider whose name is not that of the package that brings it.
    installed = importlib.metadata.distribution(DISTRIBUTION)
    [provider] = installed.entry_points.select(group="apache_airflow_provider")
    assert provider.load()()["package-name"] == installed.name


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
    own = {"bootstrap", "user", "password"}  # the host, login and password that every connection has
    settings = set(MillraceSettings.__dataclass_fields__) - own
    tokens = {"registry_token", "auditor_token"}  # parts of the URLs, where Airflow hides them
    assert set(connection["conn-fields"]) == settings | tokens


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


def refusal() -> InstallationError | None:
    try:
        check_installation()
    except InstallationError as error:
        return error
    return None


@pytest.mark.parametrize("versions", [{}, {"pyspark": "4.3.0"}, {"pyspark_client": "4.2.0"}])
def test_either_one_alone_is_accepted(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    pretend(monkeypatch, **versions)
    assert refusal() is None


def test_this_installation_is_accepted() -> None:
    assert refusal() is None


LOAD_PLUGINS = """
import json, sys
from airflow._shared.plugins_manager import _load_plugins_from_plugin_directory as load
found = {}
for syntax in ("glob", "regexp"):
    plugins, errors = load(plugins_folder=sys.argv[1], load_examples=False, ignore_file_syntax=syntax)
    found[syntax] = [[plugin.name for plugin in plugins], errors]
found["bare"] = sorted(set(sys.modules) & {"errors", "job", "plan", "settings", "provider_info", "load"})
print(json.dumps(found))
"""


def test_airflow_finds_one_plugin_in_the_folder_and_imports_no_module_by_its_bare_name(
    tmp_path: Path,
) -> None:
    installed = "millrace" in importlib.metadata.entry_points(group="airflow.plugins").names
    found = printed(LOAD_PLUGINS, str(PLUGINS), cwd=tmp_path)
    plugins = [] if installed else ["millrace"]
    assert found == {"glob": [plugins, {}], "regexp": [plugins, {}], "bare": []}


def printed(code: str, *arguments: str, cwd: Path) -> dict[str, object]:
    """The JSON that Python code prints last, run in a process and an Airflow home of its own."""
    done = run_python(
        "-c",
        code,
        *arguments,
        timeout_s=60,
        env={"AIRFLOW_HOME": str(cwd), "AIRFLOW__CORE__PLUGINS_FOLDER": str(PLUGINS)},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


INSTALLED = """
import json
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
providers = ProvidersManager()
print(json.dumps({
    "hook": type(Connection(conn_id="c", conn_type="millrace").get_hook()).__name__,
    "name": providers.hooks["millrace"].hook_name,
    "fields": sorted(name for name in providers.connection_form_widgets if "millrace" in name),
    "plugins": [plugin.name for plugin in plugins_manager._get_plugins()[0] if plugin.name == "millrace"],
    "errors": plugins_manager.get_import_errors(),
}))
"""


def test_an_installed_package_gives_airflow_its_connection_type_and_its_folder_steps_aside(
    tmp_path: Path,
) -> None:
    found = printed(INSTALLED, cwd=tmp_path)
    fields = found.pop("fields")
    # A plugin that was loaded twice would be an error here, and cost workers all plugins after it.
    assert found == {"hook": "MillraceHook", "name": "Millrace", "plugins": ["millrace"], "errors": {}}
    assert isinstance(fields, list)
    assert "extra__millrace__warehouse" in fields
