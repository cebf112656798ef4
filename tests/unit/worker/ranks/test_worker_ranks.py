"""Configs of a worker's ranks."""

import os
from dataclasses import replace

import pytest

from baton.engine.config import EngineConfig
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.ranks.rank_process import _spec
from baton.worker.ranks.worker_ranks import with_thread_share

ONE = WorkerConfig(role="decode", worker_id="w", engine=EngineConfig(model="m"))


def test_ranks_divide_the_cores() -> None:
    assert with_thread_share(ONE) is ONE
    two = with_thread_share(replace(ONE, tensor_parallel=2))
    assert two.engine.num_threads == max(1, len(os.sched_getaffinity(0)) // 2)
    assert with_thread_share(replace(ONE, tensor_parallel=64)).engine.num_threads == max(
        1, len(os.sched_getaffinity(0)) // 64
    )
    told = replace(ONE, tensor_parallel=2, engine=replace(ONE.engine, num_threads=7))
    assert with_thread_share(told) is told


def test_whole_experts_are_spread_over_ranks_or_workers() -> None:
    assert replace(ONE, tensor_parallel=4, expert_parallel=4).group_size == 1  # and it needs no rendezvous
    assert replace(ONE, expert_parallel=4, rendezvous="127.0.0.1:7300").group_size == 4
    with pytest.raises(
        OptionError, match=r"expert_parallel: 2, but the experts are on the 4 ranks .* set 4 to keep each expert whole"
    ):
        replace(ONE, tensor_parallel=4, expert_parallel=2, rendezvous="127.0.0.1:7300")
    with pytest.raises(OptionError, match="rendezvous: expert_parallel needs"):
        replace(ONE, expert_parallel=2)


def test_the_ports_of_a_worker_are_compared_once_not_those_of_each_rank() -> None:
    engine = replace(ONE.engine, kv_cache_memory_bytes=1 << 20)
    nodes = replace(ONE, engine=engine, tensor_parallel=4, nnodes=2, transport="tcp", kv_port=29499)
    spec = _spec(nodes, 1, "unix:/0")  # its port is 29500, and a third rank's, which is elsewhere, would be 29501
    assert "--kv-port=29500" in spec.argv
