"""What the deployments of an application on Ray Serve may not be told."""

import math

from baton.deployment.local.cluster import END_MARGIN_S
from baton.deployment.ray.settings import RENDEZVOUS, ROLES, ROUTER, SECTIONS, RaySettings
from baton.settings.device import check_device
from baton.settings.values import OptionError
from baton.settings.worker_config import Role


def check_deployments(settings: RaySettings) -> None:
    """Raises OptionError for what Ray could never run, or would quietly do otherwise."""
    for role in ROLES:
        _check_size(settings, role)
        if settings.has(role):
            _check_device(settings, role)
            _check_end(settings, role, settings.longest_drain_s)
            _check_group(settings, role)
    if settings.has_router:
        _check_end(settings, ROUTER, settings.drain_timeout_s + END_MARGIN_S)  # it hands nothing on
    if settings.deployments[RENDEZVOUS].has_size:
        raise OptionError(f"{SECTIONS[RENDEZVOUS]}: there is one, if a pool has expert_parallel; leave its number out")


def _check_size(settings: RaySettings, role: Role) -> None:
    autoscaling, where = settings.deployments[role].autoscaling, f"{SECTIONS[role]}.autoscaling"
    if autoscaling is None:
        return
    if role == "both":
        raise OptionError(f"{where}: nothing sizes colocated workers; give {SECTIONS[role]}.num_replicas")
    if autoscaling.initial_replicas is not None:
        raise OptionError(
            f"{where}.initial_replicas: Serve would go back to it at each change of the application, whatever the load;"
            " leave it out, a pool begins with min_replicas"
        )


def _check_group(settings: RaySettings, role: Role) -> None:
    """A pool is one group, which whoever comes joins; but it begins only when all are there that it is said to need."""
    size, num_replicas = settings.group_size(role), settings.num_replicas(role)
    if size == 1 or num_replicas >= size:
        return
    options, where = settings.deployments[role], SECTIONS[role]
    key = f"{where}.autoscaling.min_replicas" if options.autoscaling is not None else f"{where}.num_replicas"
    option = "prefill_expert_parallel" if role == "prefill" else "expert_parallel"
    raise OptionError(
        f"{key if options.has_size else role}: {num_replicas}, but the group of the {role} workers begins with {size}"
        f" ({option}); give {size} or more"
    )


def _check_device(settings: RaySettings, role: Role) -> None:
    device, num_gpus = settings.device(role), settings.num_gpus(role)
    check_device(device)
    kind, _, index = device.partition(":")
    if settings.uses_gpu(role) and not num_gpus:
        raise OptionError(f"{SECTIONS[role]}.num_gpus: without one Ray hides the GPUs that device asks for")
    num_ranks = settings.cluster.cluster.num_tensor_ranks(role)
    if settings.uses_gpu(role) and math.ceil(num_gpus) < num_ranks:  # a single rank may have a part of one
        option = "prefill_tensor_parallel" if role == "prefill" else "tensor_parallel"
        raise OptionError(
            f"{SECTIONS[role]}.num_gpus: {num_gpus:g}, but a worker has {num_ranks} ranks ({option}), each with a GPU"
        )
    if settings.uses_gpu(role) and index.isdecimal() and int(index) + num_ranks > math.ceil(num_gpus):
        raise OptionError(
            f"device: {device} for {role}, but a replica sees none but the {num_gpus:g} that Ray gives it, counted from"
            f" 0; say {kind}"
        )


def _check_end(settings: RaySettings, name: str, least_s: float) -> None:
    """A replica's process is killed at the end of that time, with what it was about to hand on."""
    given_s = settings.shutdown_timeout_s(name)
    if given_s < least_s:
        raise OptionError(
            f"{SECTIONS[name]}.graceful_shutdown_timeout_s: {given_s:g} s end a replica before it has drained; give"
            f" {least_s:g} or more, or less than {settings.drain_timeout_s:g} as drain_timeout_s"
        )
