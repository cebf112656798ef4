"""Marks that several test modules use."""

from collections.abc import Container, Iterable
from functools import partial
from typing import Any

import pytest

slow_case = partial(pytest.param, marks=pytest.mark.slow)  # a parametrised case that only `make test-all` runs


def slow_except(cases: Iterable[Any], usual: Container[Any]) -> list[Any]:
    """Return the cases of a parametrised test, all slow but the usual ones."""
    return [case if case in usual else slow_case(case) for case in cases]
