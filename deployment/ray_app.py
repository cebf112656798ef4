"""Former name of `baton.deployment.ray.app`, kept for one release."""

from baton.deployment.ray.app import build

__all__ = ["build"]
