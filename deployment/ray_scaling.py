"""Former name of `baton.deployment.ray.scaling`, kept for one release."""

from baton.deployment.ray.scaling import PoolsPolicy

__all__ = ["PoolsPolicy"]
