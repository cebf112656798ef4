"""A policy and its observer."""

import pytest

from baton.deployment.ray.scaling import PoolsPolicy
from tests.unit.deployment.ray.scaling_rig import ScriptedObserver, replace_name


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> ScriptedObserver:
    """Return the observer of the next policy."""
    seen = ScriptedObserver()
    replace_name(monkeypatch, "make_observer", lambda _: seen)
    return seen


@pytest.fixture
def policy(observer: ScriptedObserver) -> PoolsPolicy:
    return PoolsPolicy(registry="redis://nowhere", budget_gpus=8)
