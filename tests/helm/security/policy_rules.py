"""Who connects to whom, by the rules of network policies."""

from typing import Any

from tests.helm import charts
from tests.helm.label_selectors import selects


def allows(rules: list[charts.Manifest], way: str, labels: dict[str, str], port: int | str) -> bool:
    """Whether rules of a policy let a connection from or to a pod of the release through at this port."""
    for rule in rules:
        peers = rule.get(way)
        ports = rule.get("ports")
        if peers is not None and not any(
            "namespaceSelector" not in peer and selects(peer["podSelector"], labels)
            for peer in peers
            if "podSelector" in peer
        ):
            continue
        if ports is None or any(covers(each, port) for each in ports):
            return True
    return False


def covers(entry: dict[str, Any], port: int | str) -> bool:
    """Whether an entry of a policy's ports has this TCP port."""
    if entry.get("protocol", "TCP") != "TCP":
        return False
    first = entry["port"]
    if isinstance(first, int) and isinstance(port, int):
        return first <= port <= int(entry.get("endPort", first))
    return bool(first == port)
