"""Links between real processes, and to peers that differ from their description."""

import asyncio
import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.doctor.finding import Level
from baton.doctor.link import Link, check_link
from baton.doctor.link_limit import LoopbackLimit, MemoryCopyLimit, is_same_host, is_this_machine, link_limit
from baton.doctor.local_links import measure_local_links
from baton.doctor.probe import Reader, probe
from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.shared_memory.transport import host_id

HOST = "127.0.0.1"
NUM_BLOCKS, BLOCK_BYTES = 8, 4096
READER = Reader("model", BLOCK_BYTES, HOST)


async def probe_own_pool(reader: Reader, owner: str, setting: str, **changed: object) -> list[tuple[str | None, str]]:
    """Return the transports by which a pool of this process was read, each with its reason."""
    return [(link.transport, link.reason) for link in await links_to_own_pool(reader, owner, setting, **changed)]


async def links_to_own_pool(reader: Reader, owner: str, setting: str, **changed: object) -> list[Link]:
    """Probe a pool that this process serves over `owner`, with `changed` fields in its description."""
    memory = SharedPool()
    pool = memory.allocate((NUM_BLOCKS, BLOCK_BYTES), torch.uint8)
    transport = create_transport(owner, PoolIdentity("life", "model"), memory, HOST)
    description: PoolDescription = replace(transport.register_pool(pool), **changed)  # type: ignore[arg-type]  # chosen by the tests
    try:
        links = await asyncio.to_thread(probe, reader, description, setting)
        assert not pool.any()
        return links
    finally:
        await transport.close()
        memory.close()


@pytest.mark.slow
def test_links_between_two_processes_of_this_machine() -> None:
    links = measure_local_links("auto")
    assert [link.asked for link in links][:1] == ["auto"]
    assert {link.asked for link in links} >= {"auto", "tcp", "nixl"}
    for link in links:
        assert link.is_same_host
        if link.rates is not None:
            assert link.rates.limit is not None
            assert link.rates.limit.share > 0
            assert link.rates.bytes_per_s > 0
            assert 0 < link.rates.latency_s < 5
    chosen = links[0]
    assert chosen.transport == "shared_memory"
    assert check_link(chosen, "auto").level is not Level.FAILURE


def num_mapped_pools() -> int:
    return sum("memfd:baton-kv-pool" in line for line in Path("/proc/self/maps").read_text().splitlines())


async def test_memory_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = num_mapped_pools()
        await probe_own_pool(READER, "auto", "auto")
        await probe_own_pool(READER, "nixl", "nixl")
        assert num_mapped_pools() == before
    finally:
        gc.enable()


async def test_the_configured_transport_comes_first_and_each_only_once() -> None:
    assert [used for used, _ in await probe_own_pool(READER, "tcp", "tcp")] == ["tcp"]
    assert [used for used, _ in await probe_own_pool(READER, "auto", "auto")] == ["shared_memory", "tcp"]
    assert [used for used, _ in await probe_own_pool(READER, "auto", "tcp")] == ["tcp", "shared_memory"]


async def test_a_transport_that_the_owner_lacks_is_unusable() -> None:
    first, second = await probe_own_pool(READER, "tcp", "shared_memory")
    assert (first[0], "does not offer shared_memory" in first[1]) == (None, True)
    assert second[0] == "tcp"


async def test_auto_on_tcp_despite_rdma_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlx5_0").mkdir()
    # Pretend that there is an RDMA device; the rest is real.
    monkeypatch.setattr("baton.kvtransfer.nixl.rdma.DEVICES", str(tmp_path))
    (link,) = await links_to_own_pool(READER, "tcp", "auto")
    assert (link.transport, link.has_rdma) == ("tcp", True)
    finding = check_link(link, "auto")
    assert (finding.check, finding.level) == ("rdma-requested-tcp-used", Level.FAILURE)
    assert "does not offer nixl" in finding.found


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (replace(READER, fingerprint="other model"), "fingerprint"),
        (replace(READER, block_bytes=BLOCK_BYTES + 1), "block size"),
    ],
)
async def test_blocks_of_another_fingerprint_or_size_are_not_read(reader: Reader, words: str) -> None:
    for used, reason in await probe_own_pool(reader, "auto", "auto"):
        assert used is None
        assert words in reason


@pytest.mark.parametrize("block_bytes", [BLOCK_BYTES // 2, BLOCK_BYTES * 2])
async def test_shards_of_blocks_are_measured(block_bytes: int) -> None:
    for link in await links_to_own_pool(replace(READER, block_bytes=block_bytes), "auto", "auto"):
        assert link.rates is not None
        assert link.rates.block_bytes == min(block_bytes, BLOCK_BYTES)
        assert link.rates.read_bytes % link.rates.block_bytes == 0


async def test_a_pool_that_is_not_as_described_is_not_read() -> None:
    for changed in ({"num_blocks": 10**9}, {"incarnation": "another life"}, {"num_blocks": 0}):
        for used, _ in await probe_own_pool(READER, "auto", "auto", **changed):
            assert used is None
    ((used, reason),) = await probe_own_pool(READER, "tcp", "tcp", endpoints={"tcp": b"garbled"})
    assert (used, "garbled" in reason) == (None, True)


def test_limits_of_links_are_measured() -> None:
    for limit in (MemoryCopyLimit(1 << 20), LoopbackLimit(1 << 20)):
        assert limit.bytes_per_s() > 0
        limit.close()


def test_the_limit_of_a_link_to_another_machine() -> None:
    assert is_this_machine(HOST)
    assert not is_this_machine("192.0.2.1")  # reserved for documentation
    endpoint = b'{"host": "192.0.2.1", "port": 1, "key": "k"}'
    peer = PoolDescription("life", "model", 1, 1, {"tcp": endpoint})
    assert not is_same_host(peer)
    limit = link_limit("tcp", peer, 1 << 20)
    assert limit is None or limit.bytes_per_s() > 0  # the interface's speed, if it reports one


def test_another_network_namespace_of_one_kernel_is_the_same_host() -> None:
    boot = host_id().partition(" ")[0]
    for host, expected in ((f"{boot} net:[1]", True), ("another-boot net:[1]", False)):
        endpoint = json.dumps({"host": host, "name": "n", "key": "k"}).encode()
        assert is_same_host(PoolDescription("life", "model", 1, 1, {"shared_memory": endpoint})) is expected
