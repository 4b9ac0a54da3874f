"""Builds the documents as a site, readable without a server: python deploy/site/build.py OUT

The README is the first page. A file of the repository that a page links to, such as a schema, is copied below
`source/`. OUT gets a folder for the version, beside those of other versions, and a list of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from millrace import __version__

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DOCS = ROOT / "docs"
AT_ROOT = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""Documents of the root that are pages, and their names in the site."""
SECTIONS = {
    "Begin": (
        *("getting-started", "your-own-event", "json-topic", "keep-your-kafka"),
        *("secure-datacenters", "access-log"),
    ),
    "Run": (
        *("deployment", "configuration", "commands", "operations", "runbooks", "security", "upgrade"),
        *("mirror", "replication", "registry"),
    ),
    "Audit": ("audit", "audit-verdict", "audit-protocol", "java", "go", "agent"),
    "Load and read": (
        *("warehouse", "airflow-standalone", "airflow", "spark", "clusters"),
        *("schema-change", "consumer", "client-offsets", "api"),
    ),
    "Judge": ("guarantees", "protocol", "benchmarks", "scale", "formats", "comparison", "paper"),
    "Change": ("CONTRIBUTING", "architecture", "inside/README", "CHANGELOG"),
}
"""Pages in the order of the navigation."""
_LINK = re.compile(r"(\]\()([^)#:\s]+)(?=[)#])")


def lay_out(folder: Path) -> None:
    """Copy all pages into a folder, with links that lead to their places there."""
    shutil.copytree(DOCS, folder, dirs_exist_ok=True)
    for page in folder.rglob("*.md"):
        page.write_text(_moved(page.read_text(), DOCS / page.relative_to(folder).parent, page.parent, folder))
    for name, page_name in AT_ROOT.items():
        (folder / page_name).write_text(_moved((ROOT / name).read_text(), ROOT, folder, folder))
    with (folder / "index.md").open("a") as index:
        index.writelines(_contents(title, pages) for title, pages in SECTIONS.items())
    chapters = sorted(page.stem for page in (folder / "inside").glob("[0-9]*.md"))
    with (folder / "inside" / "README.md").open("a") as book:
        book.write(_contents("Chapters", chapters))
    templates = folder / "_templates"
    templates.mkdir()
    versions = '<a class="sidebar-brand-text" href="{{ pathto("", 1) }}../index.html">All versions</a>'
    (templates / "versions.html").write_text(versions)


def _contents(title: str, pages: tuple[str, ...] | list[str]) -> str:
    """Return the entry of the navigation for pages; it is not shown in the page itself."""
    return "\n".join(("", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""))


def _moved(text: str, old: Path, new: Path, folder: Path) -> str:
    """Return a document with its links as they are from folder `new`, when it comes from folder `old`."""

    def moved(link: re.Match[str]) -> str:
        target = (old / link[2]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return link[0]
        name = str(target.relative_to(ROOT))
        if target.is_relative_to(DOCS):
            place = folder / target.relative_to(DOCS)
        elif name in AT_ROOT:
            place = folder / AT_ROOT[name]
        else:
            place = folder / "source" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file():
                shutil.copy(target, place)
        return f"{link[1]}{os.path.relpath(place, new)}"

    return _LINK.sub(moved, text)


def build(out: Path) -> None:
    """Build the site of this version into a folder of OUT. Raise CalledProcessError for a broken link."""
    with tempfile.TemporaryDirectory(prefix="millrace-site-") as folder:
        lay_out(Path(folder))
        shutil.copy(HERE / "conf.py", folder)
        words = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html", folder)
        environment = {**os.environ, "AIRFLOW_HOME": f"{folder}/airflow"}
        subprocess.run([sys.executable, *words, str(out / __version__)], check=True, env=environment)
    versions = sorted((path.parent.name for path in out.glob("*/index.html")), reverse=True)
    links = "".join(f'<li><a href="{name}/index.html">{name}</a></li>' for name in versions)
    (out / "index.html").write_text(
        f"<!doctype html><title>Millrace</title><h1>Millrace</h1><ul>{links}</ul>\n"
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
