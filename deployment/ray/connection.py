"""A connection to Ray for as long as a command runs."""

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
    """Ray cannot be reached, or does not run our applications; the text says why."""


@contextmanager
def own_ray(directory: Path, num_cpus: float) -> Iterator[None]:
    """A Ray on this machine that keeps its files in the directory, and ends with the block or with this process.

    Where it listens and whom it hears is in the environment. Raises RayFailed.
    """
    options = {"num_cpus": math.ceil(num_cpus), "include_dashboard": False, "_temp_dir": str(directory)}
    with _connected(address="local", **options):
        yield


@contextmanager
def joined_ray(address: str) -> Iterator[None]:
    """A connection to a Ray that runs already, from one of its nodes (auto: this node's). Raises RayFailed."""
    with _connected(address=address):
        yield


@contextmanager
def _connected(**options: Any) -> Iterator[None]:
    try:
        try:
            with _deaf_to_hangup():
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # plain ones too, such as for a start that took over 30 s
            raise RayFailed(f"Ray: {error}") from error
        yield
    finally:
        ray.shutdown()


@contextmanager
def _deaf_to_hangup() -> Iterator[None]:
    """What is started within lives on when the terminal closes: it is needed for an orderly end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def num_gpus() -> int:
    """Return the number of GPUs of all nodes of the Ray that this process is connected to."""
    return int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]  # Ray's


def cpus_of(settings: RaySettings) -> float:
    """Ray's CPUs that all replicas take."""
    names = (*filter(settings.has, ROLES), ROUTER, *([RENDEZVOUS] if settings.has_rendezvous else []))
    return sum(settings.num_replicas(name) * settings.deployments[name].replicas.num_cpus for name in names)


def with_router_here(settings: RaySettings) -> RaySettings:
    """The same with the router on this node, whose address clients were told."""
    router = settings.deployments[ROUTER]
    here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
    router = replace(router, label_selector={**here, **router.label_selector})
    return replace(settings, deployments={**settings.deployments, ROUTER: router})
