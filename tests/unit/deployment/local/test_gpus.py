"""Placement of workers on GPUs."""

from dataclasses import replace

import pytest

from baton.deployment.local.gpus import place_on_gpus
from baton.engine.config import EngineConfig
from baton.worker.config import WorkerConfig


def worker(device: str = "cuda", num_ranks: int = 1, share: float = 0.9) -> WorkerConfig:
    engine = EngineConfig(model="/models/any", device=device, gpu_memory_utilization=share)
    return WorkerConfig(role="decode", worker_id="decode-0", engine=engine, tensor_parallel=num_ranks)


def placed(workers: list[WorkerConfig], num_gpus: int) -> list[tuple[str, float]]:
    return [(each.engine.device, each.engine.gpu_memory_utilization) for each in place_on_gpus(workers, num_gpus)]


def test_each_worker_has_a_gpu_of_its_own_while_there_are_enough() -> None:
    assert placed([worker()] * 3, 4) == [("cuda:0", 0.9), ("cuda:1", 0.9), ("cuda:2", 0.9)]


def test_workers_on_one_gpu_share_its_memory() -> None:
    assert placed([worker()] * 2, 1) == [("cuda", 0.45)] * 2
    assert placed([worker(share=0.6)] * 3, 2) == [("cuda:0", 0.3), ("cuda:1", 0.6), ("cuda:0", 0.3)]


def test_a_share_that_is_set_is_kept() -> None:
    workers = [replace(worker(share=0.3), role="prefill"), worker(share=0.6)]
    found = place_on_gpus(workers, 1, {"prefill", "decode"})
    assert [each.engine.gpu_memory_utilization for each in found] == [0.3, 0.6]


def test_ranks_have_consecutive_gpus() -> None:
    assert placed([worker(), worker(num_ranks=2), worker()], 4) == [("cuda:2", 0.9), ("cuda:0", 0.9), ("cuda:3", 0.9)]


def test_a_worker_shares_with_the_most_occupied_of_its_gpus() -> None:
    assert placed([worker(num_ranks=2), worker()], 2) == [("cuda:0", 0.45), ("cuda:0", 0.45)]


def test_a_given_gpu_is_kept_and_the_others_are_used_first() -> None:
    assert placed([worker(), worker("cuda:0"), worker()], 3) == [("cuda:1", 0.9), ("cuda:0", 0.9), ("cuda:2", 0.9)]


@pytest.mark.parametrize("devices", [["cpu"], ["cuda:7"]])
def test_other_devices_and_missing_gpus_are_left_alone(devices: list[str]) -> None:
    assert placed([worker(device) for device in devices], 2) == [(device, 0.9) for device in devices]
    assert placed([worker(num_ranks=4)], 2) == [("cuda", 0.9)]
