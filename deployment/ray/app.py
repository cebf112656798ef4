"""Baton as an application on Ray Serve: `serve run baton.deployment.ray.app:build model=/models/x registry=redis://cache`.

Ray places, watches, replaces and scales the replicas; each runs one of our processes. Requests, tokens and KV go
between these directly, never through Ray.
"""

from typing import Any

import ray
from ray import serve
from ray.serve import Application, Deployment

from baton.deployment.local.cluster_config import router_options
from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.connection import num_gpus
from baton.deployment.ray.replica import RendezvousReplica, RouterReplica, WorkerReplica
from baton.deployment.ray.settings import RENDEZVOUS, ROLES, ROUTER, RaySettings

# What chooses both pools' sizes: an application's `autoscaling_policy` in Serve's config file.
AUTOSCALING_POLICY = "baton.deployment.ray.scaling:PoolsPolicy"
WAIT_LOOP_S = 0.2  # before a replica ends; our processes drain by themselves
WORKER_ONGOING = 16  # requests of Serve's, which only ask who it is


def build(args: dict[str, object]) -> Application:
    """The application: deployments `prefill`, `decode`, `both` (those with workers) and `router`, its ingress; beside
    them `rendezvous`, if a pool's workers are a group.

    `args` are what `read_ray_settings` takes; all values may be texts, as a command line has them. Raises OptionError
    naming the offending key.
    """
    settings = read_ray_settings(args, {}, auto_device="cuda" if _has_gpus() else None)
    if settings.has_router:
        return router_application(settings, workers_application(settings))
    return workers_application(settings)


def _has_gpus() -> bool:
    """Whether a node of the Ray that builds the application has GPUs."""
    return ray.is_initialized() and num_gpus() > 0


def workers_application(settings: RaySettings) -> Application:
    """The workers alone, for routers from elsewhere. Raises OptionError."""
    settings.check()
    pools: list[Application] = []  # each holds the one before it, for an application has one root
    if settings.has_rendezvous:
        pools = [_deployment(settings, RENDEZVOUS, RendezvousReplica, WORKER_ONGOING).bind(settings)]
    for role in ROLES:
        if settings.has(role):
            pool = _deployment(settings, role, WorkerReplica, WORKER_ONGOING)
            pools = [pool.bind(settings, role, *pools)]
    [root] = pools
    return root


def router_application(settings: RaySettings, *workers: Application) -> Application:
    """A router, in one application with these workers or without any. Raises OptionError."""
    settings.check()
    # More than the router takes, so that it is the router that refuses, with its own words.
    limits = [_limit(settings, name) for name in ("max_inflight", "max_queue")]
    max_ongoing = (sum(limits) + 1) * settings.cluster.cluster.router_processes
    return _deployment(settings, ROUTER, RouterReplica, max_ongoing).bind(settings, *workers)


def _limit(settings: RaySettings, name: str) -> int:
    limit = settings.cluster.router.get(name, router_options()[name].default)
    assert isinstance(limit, int)
    return limit


def _deployment(settings: RaySettings, name: str, replica: type, max_ongoing: int) -> Deployment:
    """A deployment as its section says; Ray's own words for a runtime environment that it does not take."""
    options = settings.deployments[name]
    replicas, autoscaling = options.replicas, options.autoscaling
    size: dict[str, Any] = {"num_replicas": settings.num_replicas(name)}
    if autoscaling is not None:
        bounds = {"min_replicas": autoscaling.min_replicas, "max_replicas": autoscaling.max_replicas}
        at_once = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}  # our policy has delays of its own
        size = {"autoscaling_config": {**bounds, **at_once, "initial_replicas": autoscaling.initial_replicas}}
    if replicas.max_replicas_per_node is not None:
        size["max_replicas_per_node"] = replicas.max_replicas_per_node
    elif name == ROUTER and settings.port:
        size["max_replicas_per_node"] = 1  # the port is there once
    actor: dict[str, Any] = {"num_cpus": replicas.num_cpus, "num_gpus": settings.num_gpus(name)}
    for key, value in (
        ("resources", options.resources),
        ("label_selector", options.label_selector),
        ("runtime_env", options.runtime_env),
    ):
        if value:
            actor[key] = dict(value)
    return serve.deployment(
        name=name,
        ray_actor_options=actor,
        max_ongoing_requests=replicas.max_ongoing_requests or max_ongoing,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        graceful_shutdown_wait_loop_s=WAIT_LOOP_S,
        graceful_shutdown_timeout_s=settings.shutdown_timeout_s(name),
        **size,
    )(replica)
