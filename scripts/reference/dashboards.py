"""Tables of the panels of the Grafana dashboards, from their JSON in the chart."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scripts.reference.tables import code, table

DASHBOARDS = Path(__file__).resolve().parents[2] / "helm" / "baton" / "dashboards"
SERIES = re.compile(r"\b(?:baton:|kube_|container_)[a-z0-9_:]+|\bup(?={)")


def panels(name: str) -> str:
    """Return the table of a dashboard's panels, in the order in which they are shown."""
    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))
    return table(("section", "panel", "unit", "shows", "from"), _rows(dashboard["panels"]))


def _rows(found: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    section = ""
    for panel in found:
        if panel["type"] == "row":
            section = panel["title"]
            yield from _rows([{**each, "section": section} for each in panel.get("panels", [])])
            continue
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        series = {name: None for query in panel.get("targets", []) for name in SERIES.findall(query["expr"])}
        shows = panel.get("description", "")
        names = ", ".join(map(code, series))
        yield panel.get("section", section), panel["title"], "" if unit == "none" else code(unit), shows, names


operations = partial(panels, "operations")
objectives = partial(panels, "objectives")
