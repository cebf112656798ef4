"""Marks that several test modules use."""

from functools import partial

import pytest

slow_case = partial(pytest.param, marks=pytest.mark.slow)  # a parametrised case that only `make test-all` runs
