"""Builds `millrace/records/_runs.c` when Millrace is installed or its wheel is made, and notes the commit.

Without a C compiler, or with MILLRACE_PURE_WHEEL in the environment, the wheel is one of Python alone, and a
broker does in Python what is in there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCE = Path(__file__).parent / "millrace" / "records" / "_runs.c"
MODULE = SOURCE.with_suffix(".abi3.so")
COMMIT = Path("broker") / "millrace" / "commit.txt"
"""File of an sdist with the commit that it was made from."""
PURE = "MILLRACE_PURE_WHEEL"
LEAST_PYTHON = "cp311"  # as Py_LIMITED_API in the source


class CompiledRuns(BuildHookInterface):  # type: ignore[misc]
    """Adds the compiled module to a wheel, or lays it beside its source for an editable installation.

    Wheel and sdist get the commit that they were made from, for `millrace --version`.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-build-")
        if version != "editable" and (commit := commit_of_checkout()):
            file = Path(self._folder.name) / COMMIT.name
            file.write_text(f"{commit}\n")
            place = COMMIT if self.target_name == "sdist" else COMMIT.relative_to("broker")
            build_data["force_include"][str(file)] = str(place)
        if self.target_name == "sdist" or os.environ.get(PURE):
            return
        try:
            module = compile_into(Path(self._folder.name))
        except (BaseError, CCompilerError) as error:
            print(f"{SOURCE.name} is not compiled, Millrace works without: {error}", file=sys.stderr)
            return
        if version == "editable":
            module.replace(MODULE)
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{LEAST_PYTHON}-abi3-{platform}"
        build_data["force_include"][str(module)] = f"millrace/records/{MODULE.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def commit_of_checkout() -> str:
    """Return the short hash of the checked-out commit; empty outside a checkout, such as in an sdist."""
    if not (Path(__file__).parent.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def compile_into(folder: Path) -> Path:
    """Compile the module; raises an error of setuptools where that is not possible."""
    extension = Extension("_runs", [str(SOURCE)], py_limited_api=True, extra_compile_args=["-O2", "-Wall"])
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("_runs"))
