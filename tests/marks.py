"""Marks that several test modules use."""

from collections.abc import Container, Iterable
from functools import partial
from itertools import groupby
from typing import Any

import pytest

slow_case = partial(pytest.param, marks=pytest.mark.slow)  # a parametrised case that only `make test-all` runs
each_value = pytest.mark.each_value  # of all combinations, `make test` runs a few, in which each value occurs


def slow_except(cases: Iterable[Any], usual: Container[Any]) -> list[Any]:
    """Return the cases of a parametrised test, all slow but the usual ones."""
    return [case if case in usual else slow_case(case) for case in cases]


def mark_slow_combinations(items: Iterable[pytest.Item]) -> None:
    """Of each test marked `each_value`, mark the combinations slow whose values all occur in earlier ones."""
    combined = (item for item in items if item.get_closest_marker("each_value") and not item.get_closest_marker("slow"))
    for _, group in groupby(combined, key=lambda item: item.nodeid.partition("[")[0]):
        rest = {item: _values(item) for item in group}
        seen: set[object] = set()
        while rest:
            item = max(rest, key=lambda each: len(rest[each] - seen))
            if rest[item] <= seen:
                break
            seen |= rest.pop(item)
        for item in rest:
            item.add_marker(pytest.mark.slow)


def _values(item: pytest.Item) -> set[object]:
    """Return the case that `item` has of each `parametrize`."""
    params = item.callspec.params  # type: ignore[attr-defined]
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [tuple(each.replace(" ", "").split(",")) if isinstance(each, str) else tuple(each) for each in names]
    return {(each, tuple(id(params[name]) for name in each)) for each in split}
