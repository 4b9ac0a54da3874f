"""The locks of `deploy/`: pinned with hashes, of the versions that the tests run with, and complete."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support import REPOSITORY
from tests.unit.deploy.files import DEPLOY

LOCK, BUILD_LOCK = DEPLOY / "requirements.txt", DEPLOY / "build-requirements.txt"
EXTRAS = ("warehouse", "objects", "postgres")


def pinned(file: Path) -> dict[str, str]:
    """Package -> version of a lock or of constraints.txt."""
    found = re.findall(r"^([\w.-]+)(?:\[\w+\])?==([\w.+-]+)", file.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def needed() -> set[str]:
    """Every package that Millrace with these extras needs here, directly or not."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(line) for line in project["dependencies"]]
    for extra in EXTRAS:
        waiting += [Requirement(line) for line in project["optional-dependencies"][extra]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) not in seen:
                seen.add((wanted.name, extra))
                below = map(Requirement, requires(wanted.name) or ())
                waiting += [
                    one for one in below if one.marker is None or one.marker.evaluate({"extra": extra})
                ]
    return {canonicalize_name(name) for name, _ in seen}


def test_the_lock_has_the_versions_that_the_tests_run_with() -> None:
    lock, constraints = pinned(LOCK), pinned(REPOSITORY / "constraints.txt")
    assert lock == {name: constraints[name] for name in lock}


def test_the_lock_covers_every_requirement_of_the_extras() -> None:
    assert needed() <= set(pinned(LOCK))


def test_every_pinned_package_installs_on_the_oldest_python_that_the_readme_names() -> None:
    constraints = pinned(REPOSITORY / "constraints.txt")
    wanted = {
        canonicalize_name(package.name): str(package.metadata.json.get("requires_python", ""))
        for package in distributions()
        if constraints.get(canonicalize_name(package.name)) == package.version
    }
    assert len(wanted) > len(constraints) / 2
    assert {name: rule for name, rule in wanted.items() if "3.11.0" not in SpecifierSet(rule)} == {}


@pytest.mark.parametrize("lock", [LOCK, BUILD_LOCK], ids=lambda lock: lock.name)
def test_every_entry_of_a_lock_has_a_hash_and_no_entry_names_an_index(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    entries = "\n".join(lines).replace("\\\n", "").splitlines()
    assert len(entries) == len(pinned(lock))
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("file", ["container/Containerfile", "ci/github-actions.yml", "ci/gitlab-ci.yml"])
def test_packages_are_installed_from_the_locks_that_the_wheel_holds(file: str) -> None:
    text = (DEPLOY / file).read_text()
    installs = re.findall(r"pip install (.*?)(?: \\)?$", text, re.MULTILINE)
    locks = [re.search(r"--require-hashes .*/millrace/deploy/(\S+)$", line) for line in installs[:-1]]
    assert [found and found[1] for found in locks] == [BUILD_LOCK.name, LOCK.name]
    assert "--no-deps" in installs[-1]
    assert all((DEPLOY / found[1]).is_file() for found in locks if found)


def test_a_pull_requests_token_can_read_and_only_the_default_branchs_can_register() -> None:
    (job,) = yaml.safe_load((DEPLOY / "ci/github-actions.yml").read_text())["jobs"].values()
    assert [step["env"]["MILLRACE_REGISTRY"] for step in job["steps"] if "env" in step] == [
        "${{ secrets.MILLRACE_REGISTRY_READ }}",
        "${{ secrets.MILLRACE_REGISTRY_REGISTER }}",
    ]
    jobs = yaml.safe_load((DEPLOY / "ci/gitlab-ci.yml").read_text())
    for name, role in (("schemas-plan", "READ"), ("schemas-apply", "REGISTER")):
        assert jobs[name]["variables"] == {"MILLRACE_REGISTRY": f"$MILLRACE_REGISTRY_{role}"}
