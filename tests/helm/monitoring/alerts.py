"""The chart's alerts, as Prometheus reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.helm.charts import MODEL, merged, only, render

PLAIN = Path(__file__).resolve().parents[3] / "examples" / "prometheus" / "baton.rules.yaml"
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


def plain_groups() -> list[dict[str, Any]]:
    """The groups of the file for a Prometheus without the operator."""
    groups: list[dict[str, Any]] = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))["groups"]
    return groups


def alerts(values: Mapping[str, Any]) -> list[Alert]:
    """All alerts with these values."""
    return alerts_of(rule_groups(values))


def alerts_of(groups: Iterable[Mapping[str, Any]]) -> list[Alert]:
    """All alerts of these groups."""
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return [Alert(rule["alert"], rule["expr"], rule["labels"], rule["annotations"]) for rule in rules]


def recordings(values: Mapping[str, Any]) -> dict[str, str]:
    """The expressions of the recording rules with these values, by series."""
    return {
        rule["record"]: rule["expr"] for group in rule_groups(values) for rule in group["rules"] if "record" in rule
    }
