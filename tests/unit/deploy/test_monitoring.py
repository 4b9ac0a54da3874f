"""Every alert has its runbook, every runbook its alert; Prometheus asks the page's machines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support import REPOSITORY
from tests.unit.deploy.files import DEPLOY, Alert, alerts, dashboards, environment, installed, metrics_in

RUNBOOKS = (REPOSITORY / "docs" / "runbooks.md").read_text()
PARTS = ["Meaning", "See", "Do", "Solved"]


def _sections() -> dict[str, str]:
    """Alert -> its runbook."""
    _, *sections = re.split(r"^### ", RUNBOOKS, flags=re.MULTILINE)
    return {name: text for name, _, text in (section.partition("\n") for section in sections)}


def test_alerts_and_runbooks_are_the_same_in_the_same_order() -> None:
    assert [alert.name for alert in alerts()] == list(_sections())


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_leads_to_a_runbook_that_says_what_when_and_how_it_ends(alert: Alert) -> None:
    assert alert.runbook == f"docs/runbooks.md#{alert.name.lower()}"
    assert re.findall(r"^- \*\*(\w+)\.\*\*", _sections()[alert.name], re.MULTILINE) == PARTS
    assert alert.severity in ("page", "ticket")


def test_links_of_the_runbooks_lead_to_sections() -> None:
    for page, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", RUNBOOKS):
        text = (REPOSITORY / "docs" / page).read_text() if page else RUNBOOKS
        heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}, anchor


def test_prometheus_asks_every_process_that_has_metrics() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    jobs: dict[str, list[dict[str, Any]]] = {
        job["job_name"]: job["static_configs"] for job in config["scrape_configs"]
    }
    asked = {
        (name, target) for name, groups in jobs.items() for group in groups for target in group["targets"]
    }
    served = set()
    for row in installed():
        text = row.source.read_text()
        if row.source.suffix == ".toml":
            (port,) = re.findall(r'metrics_listen = ".*:(\d+)"', text)
        elif row.unit in jobs:
            options = environment(text)["MILLRACE_OPTIONS"]
            found = re.search(r"--(?:metrics-)?listen \S+:(\d+)", options)
            assert found is not None
            port = found[1]
        else:
            continue
        served.add((row.unit, f"{row.address}:{port}"))
    assert asked == served


@pytest.mark.parametrize("name", dashboards())
def test_every_panel_of_a_dashboard_shows_metrics_under_names(name: str) -> None:
    panels = dashboards()[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            assert metrics_in(target["expr"]) or target["expr"].startswith("sum by (cluster) (up{"), panel[
                "title"
            ]
            assert target["legendFormat"]
    cells = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(cells)) == len(cells)
