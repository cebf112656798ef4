"""Placement of a cluster's workers on the GPUs of this machine."""

from collections.abc import Container, Sequence
from dataclasses import replace

from baton.settings.names import Role
from baton.worker.config import WorkerConfig

ANY = "cuda"  # the device of a worker that may be placed


def place_on_gpus(
    workers: Sequence[WorkerConfig], num_gpus: int, sized_roles: Container[Role] = ()
) -> tuple[WorkerConfig, ...]:
    """Place each worker on the least occupied GPUs, consecutive ones for its ranks; those of `cuda:N` stay there.

    Workers on the same GPU divide the default of `gpu_memory_utilization` evenly. Workers of `sized_roles` keep theirs.
    """
    num_workers = [0] * num_gpus  # of each GPU
    firsts: dict[int, int] = {}  # GPU of the first rank, by place of the worker
    # Workers of many ranks are placed first, while the most GPUs are free, and those with a given place before all.
    for place in sorted(range(len(workers)), key=lambda place: (_is_free(workers[place]), -_num_ranks(workers[place]))):
        worker = workers[place]
        last = num_gpus - _num_ranks(worker)
        if not worker.is_on_gpu or last < 0:
            continue  # `require_gpus` reports GPUs that are missing
        if _is_free(worker):
            first = min(range(last + 1), key=lambda first: max(num_workers[first : first + _num_ranks(worker)]))
        else:
            first = int(worker.engine.device.partition(":")[2])
        firsts[place] = first
        for gpu in range(first, min(first + _num_ranks(worker), num_gpus)):
            num_workers[gpu] += 1
    return tuple(
        _placed(worker, firsts[place], num_workers, worker.role in sized_roles) if place in firsts else worker
        for place, worker in enumerate(workers)
    )


def _is_free(worker: WorkerConfig) -> bool:
    return worker.engine.device == ANY


def _num_ranks(worker: WorkerConfig) -> int:
    return worker.tensor_parallel


def _placed(worker: WorkerConfig, first: int, num_workers: Sequence[int], is_sized: bool) -> WorkerConfig:
    num_sharing = 1 if is_sized else max(num_workers[first : first + _num_ranks(worker)], default=1)
    share = worker.engine.gpu_memory_utilization / num_sharing
    device = f"{ANY}:{first}" if len(num_workers) > 1 else worker.engine.device
    return replace(worker, engine=replace(worker.engine, device=device, gpu_memory_utilization=share))
