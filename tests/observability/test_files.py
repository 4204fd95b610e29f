"""The files for Grafana and Prometheus speak of metrics that a hub really has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ostler.client import Fleet

SHARE = Path(__file__).parents[2] / "share"
ALWAYS = {"le", "job", "instance"}
"""Of histograms, and of the scrape itself."""
_METRIC = re.compile(r"\b(ostler_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SHARE / "grafana" / "ostler.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((SHARE / "prometheus" / "ostler.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panel_expressions() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def expressions() -> list[tuple[str, str]]:
    return panel_expressions() + [(rule["alert"], rule["expr"]) for rule in rules()]


@pytest.fixture(scope="session")
def scrape(fleet: Fleet) -> dict[str, set[str]]:
    """The labels of each sample that a hub has told by the time a job has ended on it; by the sample's name."""
    fleet.submit_command(["true"]).result(timeout=60)
    text = fleet.hub.metrics()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        endings = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}.get(family.type, ("",))
        found |= {family.name + ending: set() for ending in endings}
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def labels_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of an expression, and the labels it is asked for there; those of `by` are asked of all."""
    grouped = {name.strip() for names in _BY.findall(expression) for name in names.split(",")}
    for name, selector in _METRIC.findall(expression):
        yield name, grouped | set(re.findall(r"(\w+)\s*[=!]~?", selector))


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_every_query_asks_for_a_metric_and_labels_that_a_hub_has(
    title: str, expression: str, scrape: dict[str, set[str]]
) -> None:
    asked = list(labels_in(expression))
    assert asked or "up{" in expression
    for name, labels in asked:
        assert name in scrape, f"{title}: no {name} in /metrics"
        if known := scrape[name]:  # of models there are samples only once one was asked for
            assert labels <= known | ALWAYS, f"{title}: {name} has {sorted(known)}"


def test_no_alert_waits_for_a_count_that_a_new_hub_has_not_begun() -> None:
    for rule in rules():
        assert not re.search(r"(increase|rate)\(.*\)\s*(== 0|< )", rule["expr"]), rule["alert"]


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_promtool_takes_the_rules_and_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    plain = [one.replace("$__rate_interval", "5m").replace("$job", ".*") for _, one in panel_expressions()]
    asked = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(plain)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
    for checked in (file, SHARE / "prometheus" / "ostler.rules.yml"):
        done = subprocess.run([promtool, "check", "rules", str(checked)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
