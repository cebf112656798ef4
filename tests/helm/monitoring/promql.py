"""What a PromQL expression asks for, checked against the series of a page that exists."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

# What Prometheus adds to every series that it scrapes by a ServiceMonitor, and what only several router processes have.
SCRAPED = frozenset({"namespace", "service", "pod", "instance", "job", "container", "endpoint", "process"})
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
OWN = {"up": {"job": {""}}}  # series that Prometheus makes itself
LISTED = frozenset({"le", "role", "state"})  # labels whose values are all on the page, whatever happened so far

Page = Mapping[str, Mapping[str, set[str]]]  # values by label by series


class Wrong(AssertionError):
    """An expression that asks for what is not there."""


def read_page(text: str) -> Page:
    """The series of a `/metrics` page."""
    page: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = page[sample.name]
            for name, value in sample.labels.items():
                labels[name].add(value)
    return {**OWN, **page}


def reference_page() -> Page:
    """The series and labels of a router in the reference, which has no values."""
    table = REFERENCE.read_text(encoding="utf-8").partition("router_metrics -->")[2].partition("<!--")[0]
    page: dict[str, dict[str, set[str]]] = {}
    for name, kind, labels in re.findall(r"^\| `(baton:\w+)` \| (\w+) \| ([^|]*) \|", table, re.MULTILINE):
        own = {label: set[str]() for label in re.findall(r"`(\w+)`", labels)}
        if kind == "histogram":
            page |= {f"{name}_bucket": {**own, "le": set()}, f"{name}_sum": own, f"{name}_count": own}
        else:
            page[name] = own
    return {**OWN, **page}


def check(expression: str, page: Page) -> frozenset[str]:
    """The labels of what it returns. Raises Wrong, or the parser's ValueError."""
    return _labels(promql.parse(expression), page)


def selectors(expression: str) -> list[promql.VectorSelector]:
    """All series that it asks for."""
    found: list[promql.VectorSelector] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        for inner in _inner(node):
            visit(inner)

    visit(promql.parse(expression))
    return found


def _inner(node: Any) -> Iterator[Any]:
    if isinstance(node, promql.Call):
        yield from node.args
    elif isinstance(node, promql.BinaryExpr):
        yield from (node.lhs, node.rhs)
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, (promql.AggregateExpr, promql.ParenExpr, promql.SubqueryExpr, promql.UnaryExpr)):
        yield node.expr
    else:
        assert isinstance(node, (promql.VectorSelector, promql.NumberLiteral, promql.StringLiteral)), type(node)


def _labels(node: Any, page: Page) -> frozenset[str]:
    inner = [_labels(each, page) for each in _inner(node)]
    if isinstance(node, promql.VectorSelector):
        return _selected(node, page)
    if isinstance(node, promql.AggregateExpr):
        if node.modifier is None:
            return frozenset()
        assert node.modifier.type == promql.AggModifierType.By, node.prettify()
        return _within(node.modifier.labels, inner[0], node)
    if isinstance(node, promql.BinaryExpr):
        return _joined(node, *inner)
    if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
        return _within(["le"], inner[1], node) ^ inner[1]
    return frozenset().union(*inner)


def _selected(node: promql.VectorSelector, page: Page) -> frozenset[str]:
    if node.name not in page:
        raise Wrong(f"no series {node.name}")
    labels = page[node.name]
    for matcher in node.matchers.matchers:
        _within([matcher.name], SCRAPED.union(labels), node)
        wanted = (
            matcher.value.split("|") if matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe) else [matcher.value]
        )
        if matcher.name in LISTED and labels.get(matcher.name) and not labels[matcher.name].issuperset(wanted):
            raise Wrong(f"{node.prettify()}: {matcher.name} is one of {sorted(labels[matcher.name])}")
    return SCRAPED.union(labels)


def _joined(node: promql.BinaryExpr, left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    modifier = node.modifier
    if modifier is None or modifier.matching is None:
        if left != right and not _is_number(node.lhs) and not _is_number(node.rhs):
            raise Wrong(f"{node.prettify()}: {sorted(left)} never match {sorted(right)}")
        return left or right
    matching = set(modifier.matching.labels)
    if modifier.matching.type == promql.LabelModifierType.Include:
        _within(matching, left & right, node)
    elif left - matching != right - matching:
        raise Wrong(f"{node.prettify()}: {sorted(left - matching)} never match {sorted(right - matching)}")
    return left | _within(modifier.group_labels or (), right, node)


def _is_number(node: Any) -> bool:
    if isinstance(node, (promql.ParenExpr, promql.UnaryExpr, promql.BinaryExpr)):
        return all(map(_is_number, _inner(node)))
    return isinstance(node, promql.NumberLiteral)


def _within(wanted: Any, there: frozenset[str], node: Any) -> frozenset[str]:
    missing = set(wanted) - there
    if missing:
        raise Wrong(f"{node.prettify()}: no label {', '.join(sorted(missing))}; there are {', '.join(sorted(there))}")
    return frozenset(wanted)


def legend_labels(text: str) -> set[str]:
    """Labels that a panel's legend shows."""
    return set(re.findall(r"{{\s*(\w+)\s*}}", text))


def annotation_labels(text: str) -> set[str]:
    """Labels that an alert's annotation shows."""
    return set(re.findall(r"\$labels\.(\w+)", text))
