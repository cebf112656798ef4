"""Serve config files may name modules as they were called before."""

from baton.deployment import ray_app, ray_scaling
from baton.deployment.ray.app import build
from baton.deployment.ray.scaling import PoolsPolicy


def test_former_names_are_the_same_objects() -> None:
    assert ray_app.build is build
    assert ray_scaling.PoolsPolicy is PoolsPolicy
