"""Pins that are checked often."""

import pytest

from baton.router.pins import keeper


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "CHECK_S", 0.01)
    monkeypatch.setattr(keeper, "CONFIRM_S", 0.1)
