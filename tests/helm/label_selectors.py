"""Kubernetes' label selectors."""

from tests.helm import charts


def selects(selector: charts.Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
