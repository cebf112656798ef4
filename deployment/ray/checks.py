"""Checks of the deployment options of a Ray Serve application."""

import math

from baton.deployment.local.cluster import END_MARGIN_S
from baton.deployment.local.cluster_config import POOL_KEYS
from baton.deployment.ray.settings import RENDEZVOUS, ROLES, ROUTER, SECTIONS, RaySettings
from baton.settings.names import Role
from baton.settings.values import OptionError
from baton.worker.device import check_device


def check_deployments(settings: RaySettings) -> None:
    """Raise OptionError for options that Ray could never satisfy, or would silently ignore."""
    for role in ROLES:
        _check_size(settings, role)
        if settings.has(role):
            _check_nodes(settings, role)
            _check_device(settings, role)
            _check_end(settings, role, settings.longest_drain_s)
            _check_group(settings, role)
    if settings.has_router:
        _check_end(settings, ROUTER, settings.drain_timeout_s + END_MARGIN_S)  # a router hands nothing over
    for name in (ROUTER, RENDEZVOUS):
        if settings.deployments[name].replicas.nodes_per_worker > 1:
            raise OptionError(f"{SECTIONS[name]}.nodes_per_worker: only workers have ranks; remove it")
    if settings.deployments[RENDEZVOUS].has_size:
        raise OptionError(f"{SECTIONS[RENDEZVOUS]}: a pool with expert_parallel has exactly one; remove its number")


def _check_size(settings: RaySettings, role: Role) -> None:
    autoscaling, where = settings.deployments[role].autoscaling, f"{SECTIONS[role]}.autoscaling"
    if autoscaling is None:
        return
    if role == "both":
        raise OptionError(f"{where}: colocated workers are not autoscaled; set {SECTIONS[role]}.num_replicas")
    if autoscaling.initial_replicas is not None:
        raise OptionError(
            f"{where}.initial_replicas: Serve would return to it at every change of the application, whatever the load;"
            " remove it, a pool starts with min_replicas"
        )


def _check_nodes(settings: RaySettings, role: Role) -> None:
    """Check that a worker's ranks can be divided over its nodes."""
    num_nodes, num_ranks = settings.num_nodes(role), settings.cluster.cluster.num_tensor_ranks(role)
    where = SECTIONS[role]
    if num_ranks % num_nodes:
        raise OptionError(
            f"{where}.nodes_per_worker: {num_nodes} nodes cannot have equal shares of {num_ranks} ranks; set "
            f"{_ranks_option(role)} to a multiple of {num_nodes}"
        )
    if num_nodes == 1:
        return
    if settings.deployments[role].replicas.max_replicas_per_node is not None:
        raise OptionError(
            f"{where}.max_replicas_per_node: Ray has no such limit for replicas on several nodes (nodes_per_worker); "
            "remove it"
        )
    if not settings.uses_gpu(role) and settings.cluster.kv_cache_memory_bytes(role) is None:
        raise OptionError(
            "kv_cache_memory_bytes: missing; nodes without GPUs have no common default, so with "
            f"{where}.nodes_per_worker set the size for a rank"
        )


def _ranks_option(role: Role) -> str:
    return "prefill_tensor_parallel" if role == "prefill" else "tensor_parallel"


def _check_group(settings: RaySettings, role: Role) -> None:
    """Check that a pool has enough replicas for its expert-parallel group, which starts only with all its ranks.

    Further replicas join the same group.
    """
    size, num_replicas = settings.group_size(role), settings.num_replicas(role)
    if size == 1 or num_replicas >= size:
        return
    options, where = settings.deployments[role], SECTIONS[role]
    key = f"{where}.autoscaling.min_replicas" if options.autoscaling is not None else f"{where}.num_replicas"
    option = "prefill_expert_parallel" if role == "prefill" else "expert_parallel"
    raise OptionError(
        f"{key if options.has_size else POOL_KEYS[role]}: {num_replicas}, but the group of the {role} workers needs "
        f"{size} ({option}); set {size} or more"
    )


def _check_device(settings: RaySettings, role: Role) -> None:
    device, num_gpus = settings.device(role), settings.num_gpus(role)
    check_device(device)
    kind, _, index = device.partition(":")
    if settings.uses_gpu(role) and not num_gpus:
        raise OptionError(f"{SECTIONS[role]}.num_gpus: must be above 0, or Ray hides the GPUs that device needs")
    num_ranks = settings.ranks_per_node(role)
    if settings.uses_gpu(role) and math.ceil(num_gpus) < num_ranks:  # a single rank may have a fraction of a GPU
        there = f" on each of {num} nodes" if (num := settings.num_nodes(role)) > 1 else ""
        raise OptionError(
            f"{SECTIONS[role]}.num_gpus: {num_gpus:g}, but a worker has {num_ranks} ranks ({_ranks_option(role)})"
            f"{there}, each with a GPU"
        )
    if settings.uses_gpu(role) and index.isdecimal() and int(index) + num_ranks > math.ceil(num_gpus):
        raise OptionError(
            f"device: {device} for {role}, but a replica sees only the {num_gpus:g} that Ray assigns to it, counted "
            f"from 0; set {kind}"
        )


def _check_end(settings: RaySettings, name: str, least_s: float) -> None:
    """Check that a replica can drain before Serve kills its process."""
    given_s = settings.shutdown_timeout_s(name)
    if given_s < least_s:
        raise OptionError(
            f"{SECTIONS[name]}.graceful_shutdown_timeout_s: {given_s:g} s is too short for a replica to drain; set"
            f" {least_s:g} or more, or drain_timeout_s to less than {settings.drain_timeout_s:g}"
        )
