"""Baton as a Ray Serve application: `serve run baton.deployment.ray.app:build model=/models/x registry=redis://cache`.

Ray places, watches, replaces and scales the replicas; each runs one Baton process. Requests, tokens and KV travel
directly between these processes, never through Ray.
"""

from typing import Any

import ray
from ray import serve
from ray.serve import Application, Deployment

from baton.deployment.local.cluster_config import router_options
from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.connection import num_gpus
from baton.deployment.ray.nodes import actor_options, placement_group
from baton.deployment.ray.replica import RendezvousReplica, RouterReplica, WorkerReplica
from baton.deployment.ray.settings import RENDEZVOUS, ROLES, ROUTER, RaySettings

# The policy that sizes both pools: an application's `autoscaling_policy` in Serve's config file.
AUTOSCALING_POLICY = "baton.deployment.ray.scaling:PoolsPolicy"
WAIT_LOOP_S = 0.2  # Serve's poll interval at shutdown; the processes drain themselves
JSON_LOG: dict[str, Any] = {"encoding": "JSON"}  # of what Serve itself logs
WORKER_ONGOING = 16  # Serve sends workers no tokens to compute, only requests for their id


def build(args: dict[str, object]) -> Application:
    """Build the application: deployments `prefill`, `decode`, `both` (if they have workers) and `router`, the ingress.

    There is also a `rendezvous` deployment if a pool's workers form an expert-parallel group. `args` are the arguments
    of `read_ray_settings`; values may be strings, as on a command line. Raises OptionError with the offending key.
    """
    settings = read_ray_settings(args, {}, auto_device="cuda" if _has_gpus() else None)
    if settings.has_router:
        return router_application(settings, workers_application(settings))
    return workers_application(settings)


def _has_gpus() -> bool:
    """Whether any node of the connected Ray cluster has GPUs."""
    return ray.is_initialized() and num_gpus() > 0


def workers_application(settings: RaySettings) -> Application:
    """Build an application of the workers alone, for routers that run elsewhere. Raises OptionError."""
    settings.check()
    pools: list[Application] = []  # each binds the previous one, because an application has one root
    if settings.has_rendezvous:
        pools = [_deployment(settings, RENDEZVOUS, RendezvousReplica, WORKER_ONGOING).bind(settings)]
    for role in ROLES:
        if settings.has(role):
            pool = _deployment(settings, role, WorkerReplica, WORKER_ONGOING)
            pools = [pool.bind(settings, role, *pools)]
    [root] = pools
    return root


def router_application(settings: RaySettings, *workers: Application) -> Application:
    """Build an application of a router and, optionally, workers. Raises OptionError."""
    settings.check()
    # Above the router's own limits, so that the router rejects requests with its own error.
    limits = [_limit(settings, name) for name in ("max_inflight", "max_queue")]
    max_ongoing = (sum(limits) + 1) * settings.cluster.cluster.router_processes
    return _deployment(settings, ROUTER, RouterReplica, max_ongoing).bind(settings, *workers)


def _limit(settings: RaySettings, name: str) -> int:
    limit = settings.cluster.router.get(name, router_options()[name].default)
    assert isinstance(limit, int)
    return limit


def _deployment(settings: RaySettings, name: str, replica: type, max_ongoing: int) -> Deployment:
    """Make a deployment from its options. Ray raises its own error for an invalid runtime environment."""
    options = settings.deployments[name]
    replicas, autoscaling = options.replicas, options.autoscaling
    size: dict[str, Any] = {"num_replicas": settings.num_replicas(name)}
    if autoscaling is not None:
        bounds = {"min_replicas": autoscaling.min_replicas, "max_replicas": autoscaling.max_replicas}
        at_once = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}  # the policy has its own delays
        size = {"autoscaling_config": {**bounds, **at_once, "initial_replicas": autoscaling.initial_replicas}}
    if replicas.max_replicas_per_node is not None:
        size["max_replicas_per_node"] = replicas.max_replicas_per_node
    elif name == ROUTER and settings.port:
        size["max_replicas_per_node"] = 1  # they listen on the same port
    bundles = [group for role in ROLES if name == role and (group := placement_group(settings, role))]
    actor = actor_options(settings, name)
    if options.label_selector and not bundles:  # a placement group has selectors of its own
        actor["label_selector"] = dict(options.label_selector)
    log: dict[str, Any] = {"logging_config": JSON_LOG} if settings.log.format == "json" else {}
    if options.runtime_env:
        actor["runtime_env"] = dict(options.runtime_env)
    return serve.deployment(
        name=name,
        ray_actor_options=actor,
        max_ongoing_requests=replicas.max_ongoing_requests or max_ongoing,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        graceful_shutdown_wait_loop_s=WAIT_LOOP_S,
        graceful_shutdown_timeout_s=settings.shutdown_timeout_s(name),
        **size,
        **log,
        **(bundles[0] if bundles else {}),
    )(replica)
