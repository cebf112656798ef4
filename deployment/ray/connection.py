"""Connection to Ray for the duration of a command."""

import logging
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from baton.deployment.ray.settings import RENDEZVOUS, ROLES, ROUTER, RaySettings

NODE_LABEL = "ray.io/node-id"


class RayFailed(Exception):
    """Ray cannot be reached, or the applications failed; the text has the reason."""


@contextmanager
def own_ray(directory: Path, num_cpus: float) -> Iterator[None]:
    """Start a Ray cluster on this machine, which ends with the block or with this process.

    Its files are in `directory`. Its listen address and authentication come from the environment. Raises RayFailed.
    """
    options = {"num_cpus": math.ceil(num_cpus), "include_dashboard": False, "_temp_dir": str(directory)}
    with _connected(address="local", **options):
        yield


@contextmanager
def joined_ray(address: str) -> Iterator[None]:
    """Connect to a running Ray cluster from one of its nodes (auto: this node's cluster). Raises RayFailed."""
    with _connected(address=address):
        yield


@contextmanager
def _connected(**options: Any) -> Iterator[None]:
    try:
        try:
            with _ignoring_hangup():
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # Ray raises plain Exception too, such as for a start of over 30 s
            raise RayFailed(f"Ray: {error}") from error
        yield
    finally:
        ray.shutdown()


@contextmanager
def _ignoring_hangup() -> Iterator[None]:
    """Ignore SIGHUP in processes started in the block: a graceful shutdown needs them after the terminal closes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def num_gpus() -> int:
    """Return the number of GPUs of all nodes of the connected Ray cluster."""
    return int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]  # Ray's


def cpus_of(settings: RaySettings) -> float:
    """Return the total `num_cpus` of all replicas."""
    names = (*filter(settings.has, ROLES), ROUTER, *([RENDEZVOUS] if settings.has_rendezvous else []))
    return sum(settings.num_replicas(name) * settings.deployments[name].replicas.num_cpus for name in names)


def with_router_here(settings: RaySettings) -> RaySettings:
    """Return settings that place the router on this node, whose address was printed for clients."""
    router = settings.deployments[ROUTER]
    here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
    router = replace(router, label_selector={**here, **router.label_selector})
    return replace(settings, deployments={**settings.deployments, ROUTER: router})
