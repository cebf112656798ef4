"""The chart's alerts, as Prometheus reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.helm.charts import MODEL, merged, only, render

ON = {"monitoring": {"rules": {"enabled": True}}}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert."""

    name: str
    expression: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def rule_groups(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The PrometheusRule's groups with these values."""
    groups: list[dict[str, Any]] = only(render(merged(MODEL, ON, values)), "PrometheusRule")["spec"]["groups"]
    return groups


def alerts(values: Mapping[str, Any]) -> list[Alert]:
    """All alerts with these values."""
    rules = [rule for group in rule_groups(values) for rule in group["rules"]]
    return [Alert(rule["alert"], rule["expr"], rule["labels"], rule["annotations"]) for rule in rules]
