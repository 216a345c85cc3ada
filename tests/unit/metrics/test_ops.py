"""ops/: each expression of the dashboard and of the alert rules names series and labels that are
there. Where promtool can be had, it looks at the rules as well."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shmbroker.metrics.catalogue import CATALOGUE, HISTOGRAM
from tests.tidy.sources import ROOT

yaml = pytest.importorskip("yaml")

RULES = ROOT / "ops" / "prometheus-alerts.yml"
DASHBOARD = ROOT / "ops" / "grafana-dashboard.json"
OF_SCRAPES = {"up": ("job", "instance")}
"""Series that Prometheus makes itself."""
OF_TARGETS = {"job", "instance"}
FUNCTIONS = {
    "sum", "min", "max", "topk", "rate", "increase", "deriv", "predict_linear",
    "histogram_quantile",
}  # fmt: skip
WORDS = {"by", "and", "or"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"])


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in rules()] + [
    (panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", ())
]


def labels_of(name: str) -> set[str] | None:
    """The labels of a series as a query names it; None if there is none of that name."""
    if name in OF_SCRAPES:
        return set(OF_SCRAPES[name])
    for suffix in ("_bucket", "_sum", "_count"):
        series = CATALOGUE.get(name.removesuffix(suffix))
        if name.endswith(suffix) and series is not None and series.kind == HISTOGRAM:
            return {*series.labels, *OF_TARGETS, "le"}
    series = CATALOGUE.get(name)
    return None if series is None or series.kind == HISTOGRAM else {*series.labels, *OF_TARGETS}


def complaints(expression: str) -> list[str]:
    """What is wrong with the names in a query."""
    found = []
    known: set[str] = set()
    text = re.sub(r"\[[^]]*\]", "", expression)
    for name, matchers in re.findall(r"([a-zA-Z_]\w*)\s*\{([^}]*)\}", text):
        labels = labels_of(name) or set()
        matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers)
        found += [f"{name} has no label {label}" for label in matched if label not in labels]
    text = re.sub(r"\{[^}]*\}", "", text)
    grouped = re.findall(r"\bby\s*\(([^)]*)\)", text)
    text = re.sub(r"\bby\s*\([^)]*\)", "", text)
    for name, bracket in re.findall(r"([a-zA-Z_]\w*)\s*(\(?)", text):
        if bracket or name in WORDS:
            if name not in FUNCTIONS | WORDS:
                found.append(f"{name} is no function")
        elif (labels := labels_of(name)) is None:
            found.append(f"there is no series {name}")
        else:
            known |= labels
    for names in grouped:
        labels_named = map(str.strip, names.split(","))
        found += [f"nothing has the label {label}" for label in labels_named if label not in known]
    odd = [pair for pair in ("()", "{}", "[]") if len({*map(expression.count, pair)}) > 1]
    return found + [f"{pair} are not in pairs" for pair in odd]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=lambda text: text[:40])
def test_expression_names_what_is_there(title: str, expression: str) -> None:
    assert complaints(expression) == [], title


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(shmbroker_turns[1m])", "there is no series shmbroker_turns"),
        ("shmbroker_ready{process='x', job=\"y\"} == 0", ""),
        ('shmbroker_ready{process="x"} == 0', "shmbroker_ready has no label process"),
        ("sum by (topic) (shmbroker_ready)", "nothing has the label topic"),
        ("sun(shmbroker_ready)", "sun is no function"),
        ("sum(shmbroker_request_seconds)", "there is no series shmbroker_request_seconds"),
        ("sum(shmbroker_ready", "() are not in pairs"),
    ],
)
def test_wrong_names_are_seen(expression: str, expected: str) -> None:
    assert complaints(expression) == ([expected] if expected else [])


def test_each_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 20
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        shown = [labels_of(name) for name in re.findall(r"[a-z_]\w+", rule["expr"])]
        assert labels <= set().union(*filter(None, shown)), rule["alert"]


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels()) > 30


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules_and_the_queries(tmp_path: Path) -> None:
    queries = [
        {"record": "a:b", "expr": text.replace("$__rate_interval", "5m")} for _, text in EXPRESSIONS
    ]
    of_panels = tmp_path / "queries.yml"
    of_panels.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": queries}]}))
    for path in (RULES, of_panels):
        ran = subprocess.run(
            ["promtool", "check", "rules", str(path)], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
