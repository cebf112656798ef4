"""Former module names in Serve config files."""

from importlib import import_module

import pytest

pytest.importorskip("ray.serve")


@pytest.mark.parametrize(("module", "name"), [("app", "build"), ("scaling", "PoolsPolicy")])
def test_a_former_name_is_the_same_object(module: str, name: str) -> None:
    former, present = import_module(f"baton.deployment.ray_{module}"), import_module(f"baton.deployment.ray.{module}")
    assert getattr(former, name) is getattr(present, name)
