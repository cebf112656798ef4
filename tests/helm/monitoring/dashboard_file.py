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
    """Every query, with Grafana's variables filled in."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield Query(panel["title"], target["expr"].replace("$__rate_interval", INTERVAL), target["legendFormat"])
