"""Transport options and pool descriptions of workers on GPUs; the tests need no GPU."""

import subprocess
import sys

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.kvtransfer.base import PoolDescription
from baton.protos import worker_pb2
from baton.rpc.pool_description import pool_from_proto, pool_to_proto
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.ranks.ranks import wipe


def config(device: str, transport: str, kv_port: int = 0, tensor_parallel: int = 1) -> WorkerConfig:
    return WorkerConfig(
        role="decode",
        worker_id="w",
        engine=EngineConfig(model="m", device=device),
        transport=transport,
        kv_port=kv_port,
        tensor_parallel=tensor_parallel,
    )


@pytest.mark.parametrize(("device", "transport"), [("cuda", "tcp"), ("cuda:1", "shared_memory"), ("cpu", "nccl")])
def test_an_unsuitable_transport_is_rejected_before_the_model_is_loaded(device: str, transport: str) -> None:
    with pytest.raises(
        OptionError, match=rf"transport: {transport} does not move KV that is on {device}; choose one of"
    ):
        config(device, transport)


@pytest.mark.parametrize(
    ("device", "transport", "expected"),
    [
        ("cuda", "auto", 4),
        ("cuda:1", "staged", 3),
        ("cuda", "nixl", 1),
        ("cuda", "nccl", 1),
        ("cpu", "auto", 2),
        ("cpu", "staged", 3),
        ("cpu", "tcp", 1),
    ],
)
def test_a_rank_has_as_many_ports_as_its_transports(device: str, transport: str, expected: int) -> None:
    made = config(device, transport, kv_port=7000, tensor_parallel=2)
    assert made.kv_ports == range(7000, 7000 + 2 * expected)


def test_ports_beyond_the_last_are_refused() -> None:
    assert config("cuda", "auto", kv_port=65532).kv_ports[-1] == 65535
    with pytest.raises(OptionError, match=r"65534 takes ports 65534 to 65537, .*take one from 1 to 65532"):
        config("cuda", "auto", kv_port=65534)
    with pytest.raises(OptionError, match="take one from 1 to 65534"):
        config("cpu", "tcp", kv_port=65535, tensor_parallel=2)


def test_the_pools_description_has_the_kind_of_checksums() -> None:
    pool = PoolDescription("life", "model", 4, 512, {"nixl": b"x"}, "words")
    assert pool_from_proto(pool_to_proto(pool)) == pool
    assert pool_from_proto(worker_pb2.KVPool(num_blocks=1)).checksum == "xxh3"  # the default


def test_blocks_of_every_type_are_zeroed() -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
        pool = torch.ones(5, 2, 8).to(dtype)
        wipe(pool, [1, 4])
        assert [bool((block.view(torch.uint8) == 0).all()) for block in pool] == [False, True, False, False, True]


WIPES = """
import os, threading, torch
from baton.worker.ranks.ranks import wipe
torch.set_num_threads(4)
pool = torch.ones(4, 1 << 20, dtype=torch.uint8)
added = []
def work():
    before = len(os.listdir("/proc/self/task"))
    wipe(pool, [1, 2])
    added.append(len(os.listdir("/proc/self/task")) - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(added, pool[:, 0].tolist())
"""


def test_wiping_in_host_memory_starts_no_threads() -> None:
    """In a separate process, in which nothing else starts threads."""
    run = subprocess.run([sys.executable, "-c", WIPES], capture_output=True, text=True, check=False)
    assert run.stdout == "[0] [1, 0, 0, 1]\n", run.stderr
