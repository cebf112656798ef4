"""The dashboards that the chart brings, as Grafana reads them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[3] / "helm" / "baton" / "dashboards"
INTERVAL = "5m"  # Grafana puts one in place of its variable


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    panel: str
    expression: str
    legend: str


def dashboards() -> dict[str, dict[str, Any]]:
    """All of them, by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DIRECTORY.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, those of collapsed rows too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries(board: Mapping[str, Any]) -> Iterator[Query]:
    """Every query, with Grafana's interval and the defaults of choices filled in."""
    filled = {"$__rate_interval": INTERVAL}
    for variable in board["templating"]["list"]:
        if variable["type"] == "custom":
            filled[f"${variable['name']}"] = variable["current"]["value"]
    for panel in panels(board):
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in filled.items():
                expression = expression.replace(name, value)
            yield Query(panel["title"], expression, target.get("legendFormat", ""))
