"""Kubernetes quantities."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as clients_parse_quantity

from baton.deployment.kubernetes.api_objects import MOST, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", "0"),
        ("1", "1"),
        ("+8", "8"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("1.", "1"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("95500m", "95.5"),
        ("100n", "1e-7"),
        ("16Gi", str(16 * 2**30)),
        ("2E", "2e18"),
        ("2E3", "2000"),
        ("12e2", "1200"),
        ("5e-1", "0.5"),
    ],
)
def test_quantities_are_parsed(text: str, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "-1", "one", "NaN", "Infinity", "1_000", "1K", "1ki", "1mi", "1e", "1e1k", "k", ".", "٣"]
)
def test_invalid_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_quantities_that_are_too_large_become_the_maximum() -> None:
    assert parse_quantity("1e9999") == parse_quantity("100000E") == MOST


@given(
    st.decimals(min_value=0, max_value=10**6, places=3),
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2"]),
)
def test_quantities_equal_those_of_the_kubernetes_client(number: Decimal, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert parse_quantity(text) == min(clients_parse_quantity(text), MOST)
