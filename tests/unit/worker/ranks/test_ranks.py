"""Receives, block reports and clearing on two ranks of a worker, with a real stream to the second one."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch
from torch import Tensor

from baton.engine.errors import EngineEnded
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.checksum.block_checksum import block_checksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused, TransferDeadline, TransferError
from baton.kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from baton.kvtransfer.store.store import StoreUnavailable
from baton.protos import rank_pb2, rank_pb2_grpc
from baton.rpc.pool_description import pool_to_proto
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.stored_keys import shard_keys
from baton.worker.kv.tier import Tier
from baton.worker.ranks.first_rank import FirstRankService
from baton.worker.ranks.rank_commands import RankCommands
from baton.worker.ranks.rank_saver import RankSaver
from baton.worker.ranks.ranks import Ranks
from baton.worker.ranks.remote_rank import RemoteRank
from tests.unit.worker.kv.tiers.tier_rig import DictStore
from tests.unit.worker.ranks.scripted_adapters import ScriptedAdapters

NUM_BLOCKS, NUM_PARTS, WORDS = 8, 4, 16
WAIT_S = 20.0


@dataclass
class Worker:
    """A reading worker with two ranks, and a peer with four."""

    network: InMemoryNetwork
    ranks: Ranks
    pools: list[Tensor]  # the reader's blocks, by rank
    peer_blocks: Tensor  # the peer's whole blocks
    peer_pools: list[Tensor]
    peer_transports: list[InMemoryTransport]
    descriptions: list
    server: grpc.aio.Server
    follower: RemoteRank
    lost: list[str]
    commands: RankCommands
    following: asyncio.Task[None]
    adapters: ScriptedAdapters  # of the second rank
    store: DictStore  # of the second rank

    def reported(self, blocks: list[int]) -> list[int]:
        """Return the peer's checksums: all of its first rank, then of the next."""
        return [each for pool in self.peer_pools for each in block_checksums(pool, blocks)]

    def ours(self, block: int) -> Tensor:
        """Return a block's shards on both ranks."""
        return torch.cat([pool[block] for pool in self.pools])


def hello(rank: int) -> rank_pb2.RankHello:
    return rank_pb2.RankHello(rank=rank, options={"tensor_parallel": "2"})


def share(blocks: Tensor, ranks: PartGroup, rank: int) -> Tensor:
    first = ranks.first_part(rank)
    return blocks[:, first : first + ranks.parts_per_rank].contiguous()


def local_rank(rank: int, network: InMemoryNetwork, *followers: RemoteRank) -> tuple[Ranks, Tensor]:
    pool = torch.full((NUM_BLOCKS, NUM_PARTS // 2, WORDS), -1)
    transport = InMemoryTransport(PoolIdentity(f"ours-{rank}", "model"), network)
    return Ranks(transport, pool, PartGroup(NUM_PARTS, 2), rank, followers), pool


@asynccontextmanager
async def worker(directory: Path) -> AsyncIterator[Worker]:
    network = InMemoryNetwork()
    second, second_pool = local_rank(1, network)
    stores = []

    async def load(store: str) -> Ranks:
        stores.append(store)
        return second

    lost: list[str] = []
    follower = RemoteRank(1, lambda error: lost.append(str(error)))
    server = grpc.aio.server()
    rank_pb2_grpc.add_FirstRankServicer_to_server(FirstRankService(hello(0), [follower]), server)
    channel = grpc.aio.insecure_channel(f"unix:{directory}/0")
    adapters = ScriptedAdapters()
    saver, store = RankSaver(), DictStore()
    saver.open(RankStores(second_pool, [Tier(store)], PartGroup(NUM_PARTS, 2), 1))
    commands = RankCommands(hello(1), load, adapters, saver)
    following = asyncio.create_task(commands.follow(channel, "0", WAIT_S))
    server.add_insecure_port(f"unix:{directory}/0")  # the follower connects before the first rank listens
    await server.start()
    await follower.connected.wait()
    follower.join("here:1")
    async with asyncio.timeout(WAIT_S):
        await follower.loaded()
    assert stores == ["here:1"]

    group = PartGroup(NUM_PARTS, 4)
    blocks = torch.arange(NUM_BLOCKS * NUM_PARTS * WORDS).view(NUM_BLOCKS, NUM_PARTS, WORDS)
    pools = [share(blocks, group, rank) for rank in range(4)]
    transports = [InMemoryTransport(PoolIdentity(f"peer-{rank}", "model"), network) for rank in range(4)]
    descriptions = [
        pool_to_proto(transport.register_pool(pool)) for transport, pool in zip(transports, pools, strict=True)
    ]
    ranks, first_pool = local_rank(0, network, follower)
    try:
        yield Worker(
            network,
            ranks,
            [first_pool, second_pool],
            blocks,
            pools,
            transports,
            descriptions,
            server,
            follower,
            lost,
            commands,
            following,
            adapters,
            store,
        )
    finally:
        await follower.close()
        await commands.close()
        await asyncio.gather(following, return_exceptions=True)
        await saver.close()
        await channel.close()
        await server.stop(None)


async def test_a_block_is_received_by_every_rank(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        intake = await it.ranks.receive(it.descriptions, [6, 2, 3], 1, 5.0)
        await intake.read(1, [4])
        assert (intake.num_blocks_read, intake.num_blocks_expected, intake.num_blocks_received) == (2, 1, 1)
        intake.expect(1, it.reported([4, 7]))
        await intake.read(2, [7])
        await intake.settled()
        assert (intake.num_blocks_expected, intake.num_blocks_received) == (3, 3)
        assert torch.equal(it.ours(2), it.peer_blocks[4])
        assert torch.equal(it.ours(3), it.peer_blocks[7])
        assert torch.equal(it.ours(6), torch.full_like(it.ours(6), -1))  # known from the start
        assert intake.transport == "in_memory"
        assert intake.transfer_s > 0
        assert set(it.ranks.choices) == {f"peer-{rank}" for rank in range(4)}
        await it.ranks.clear([2, 3])
        assert torch.equal(it.ours(3), it.peer_blocks[7])


async def test_blocks_of_both_ranks_are_reported(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        for pool in it.pools:
            pool.random_(0, 1 << 30)
        assert [pool.incarnation for pool in it.ranks.describe()] == ["ours-0", "ours-1"]
        assert it.ranks.block_bytes == NUM_PARTS * WORDS * 8
        assert [it.ranks.units_for(readers) for readers in (1, 2, 4)] == [1, 1, 2]
        expected = [each for pool in it.pools for each in block_checksums(pool, [5, 0], 2)]
        assert await it.ranks.checksums([5, 0], 2) == expected
        for wrong in (3, 1 << 20):
            with pytest.raises(ValueError, match="ranks"):
                it.ranks.units_for(wrong)


async def test_a_failure_on_one_rank_fails_the_receive(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        intake = await it.ranks.receive(it.descriptions, [2, 3], 0, 5.0)
        checksums = it.reported([0, 1])
        checksums[-1] ^= 1  # the peer's last rank, which the second rank reads
        await intake.read(0, [0, 1])
        intake.expect(0, checksums)
        with pytest.raises(ChecksumMismatch, match="rank 1: block 1 of the request"):
            await intake.settled()
        assert intake.num_blocks_received == 1


async def test_after_clearing_nothing_is_written_any_more(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        intake = await it.ranks.receive(it.descriptions, [2, 3, 5], 0, WAIT_S)
        intake.expect(0, it.reported([0, 1, 4]))
        await intake.read(0, [0])
        it.network.stop("peer-3")  # stops the second rank
        reading = asyncio.create_task(intake.read(1, [1, 4]))
        while not torch.equal(it.ours(3)[:2], it.peer_blocks[1, :2]):  # the first rank continues
            await asyncio.sleep(0)
        reading.cancel()
        await it.ranks.clear([2, 3, 5], [3, 5])
        it.network.resume("peer-3")
        assert torch.equal(it.ours(2), it.peer_blocks[0])
        again = await it.ranks.receive(it.descriptions, [2, 5], 1, 5.0)  # another request has the blocks now
        again.expect(1, it.reported([6]))
        await again.read(1, [6])
        await again.settled()
        assert torch.equal(it.ours(5), it.peer_blocks[6])
        assert not it.ours(3).any()


async def test_a_rank_reports_an_unreachable_peer(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        await it.peer_transports[2].close()  # read only by the second rank
        with pytest.raises(PeerLost, match="rank 1: peer peer-2 has ended"):
            await it.ranks.receive(it.descriptions, [2], 0, 5.0)
        with pytest.raises(PeerRefused, match="cannot be divided among 3 ranks"):
            await it.ranks.receive(it.descriptions[:3], [2], 0, 5.0)
        with pytest.raises(PeerRefused, match="0 pools"):
            await it.ranks.receive([], [2], 0, 5.0)
        await it.ranks.clear([2], [2])
        assert not it.ours(2).any()


async def test_a_lost_rank_is_not_waited_for(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        intake = await it.ranks.receive(it.descriptions, [2, 3], 0, WAIT_S)
        it.network.stop("peer-3")
        reading = asyncio.create_task(intake.read(0, [0, 1]))
        await it.server.stop(None)
        with pytest.raises(PeerLost, match="rank 1 of this worker is gone"):
            await reading
        assert len(it.lost) == 1
        clearing = asyncio.create_task(it.ranks.clear([2, 3]))
        await asyncio.sleep(0.05)
        assert not clearing.done()  # its process may still write
        it.follower.gone.set()
        await clearing
        with pytest.raises(TransferError):
            await it.ranks.checksums([2], 1)
        it.network.resume("peer-3")


async def test_a_silent_rank_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.ranks.remote_receiver.SLACK_S", 0.1)
    monkeypatch.setattr("baton.worker.ranks.remote_rank.RESPONSE_TIMEOUT_S", 0.2)
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        it.network.stop("peer-3")  # read only by the second rank, which does not report the delay either
        with pytest.raises(TransferDeadline, match="no message from a rank of this worker"):
            await it.ranks.receive(it.descriptions, [2], 0, 0.1)
        it.follower.gone.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(it.commands, "_execute", lambda *_: None)
            with pytest.raises(PeerLost, match="rank 1 of this worker does not answer"):
                await it.ranks.checksums([2], 1)
        assert it.lost == ["rank 1 of this worker does not answer"]
        it.network.resume("peer-3")


async def test_ended_receives_leave_nothing(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        done = await it.ranks.receive(it.descriptions, [2], 0, 5.0)
        done.expect(0, it.reported([1]))
        await done.read(0, [1])
        await done.settled()
        await it.ranks.receive(it.descriptions, [4, 5], 2, 5.0)  # all checksums are known
        await it.peer_transports[3].close()
        for known in (0, 2):
            with pytest.raises(TransferError):
                await it.ranks.receive(it.descriptions, [4, 5], known, 5.0)
        await it.ranks.clear([4, 5])
        assert not it.follower._receivers
        assert not it.commands._receives


async def test_a_rank_that_reads_no_commands_is_lost(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        it.follower._unsent = asyncio.Queue(1)  # nothing reads it
        it.follower.join("here:1")
        with pytest.raises(PeerLost, match="rank 1 of this worker has not read the last"):
            await it.follower.checksums([2], 1)
        assert len(it.lost) == 1
        it.follower.gone.set()


async def test_a_rank_whose_results_are_not_read_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        it.commands._results = asyncio.Queue(1)  # nothing reads it
        for _ in range(2):
            it.commands._send(1, rank_pb2.BlocksCleared())
        with pytest.raises(EngineEnded):
            await it.following
        assert "the first rank has not read the last" in caplog.text


async def test_a_failed_command_loses_the_rank(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        it.follower.gone.set()
        with pytest.raises(PeerLost, match=r"rank 1: .*99"):
            await it.follower.checksums([99], 1)
        assert len(it.lost) == 1


async def test_pools_of_the_wrong_size_are_refused(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        whole = InMemoryTransport(PoolIdentity("whole", "model"), it.network)
        description = pool_to_proto(whole.register_pool(it.peer_blocks))
        before = [pool.clone() for pool in it.pools]
        with pytest.raises(PeerRefused, match="a block of rank 0 of 4 has 512 bytes"):
            await it.ranks.receive([description] * 4, [2], 0, 5.0)
        assert all(torch.equal(*pair) for pair in zip(before, it.pools, strict=True))


async def test_adapters_are_read_and_dropped(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        refused = await it.follower.read_adapter(1, "a", "nowhere")
        assert (refused.digest, refused.error) == ("", "nowhere does not exist")
        read = await it.follower.read_adapter(2, "a", "here")
        assert (read.digest, read.error) == ("digest of here", "")
        it.follower.drop_adapter(2)
        await it.follower.read_adapter(3, "b", "here")  # commands are executed in order
        assert it.adapters.events == [("a at here", 2), ("dropped", 2), ("b at here", 3)]
        assert it.lost == []


KEYS = [bytes([number]) * 16 for number in range(3)]


async def saved(it: Worker) -> None:
    """Have the second rank save its shards of blocks 4, 1 and 6, of which the second was evicted meanwhile."""
    it.pools[1].random_(0, 1 << 30)
    save = it.follower.save_stored([4, 1, 6])
    await save.copied()
    await save.write([KEYS[0], KEYS[2]], [0, 2])
    while len(it.store.blocks) < 4:
        await asyncio.sleep(0.01)


async def test_a_rank_saves_and_fetches_its_shards(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        await saved(it)
        second = range(NUM_PARTS // 2, NUM_PARTS)
        assert it.store.blocks.keys() == set(shard_keys([KEYS[0], KEYS[2]], second, NUM_PARTS))
        expected = it.pools[1].clone()
        expected[[7, 0]] = expected[[4, 6]]
        fetch = it.follower.fetch_stored([0, 0], [KEYS[0], KEYS[2]], [7, 0])
        await fetch.ended
        assert fetch.num_read == 2
        assert torch.equal(it.pools[1], expected)
        fetch = it.follower.fetch_stored([0, 0, 0], [KEYS[0], KEYS[1], KEYS[2]], [1, 2, 3])
        await fetch.ended  # the second is missing
        assert fetch.num_read == 1


async def test_a_rank_clears_its_store(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        await saved(it)
        assert await it.follower.clear_stored(0) == 4  # two shards of two blocks
        assert it.store.blocks == {}
        it.store.clear_error = StoreUnavailable("the disk has caught fire")
        with pytest.raises(StoreUnavailable, match="rank 1: the disk has caught fire"):
            await it.follower.clear_stored(0)
        assert it.lost == []


async def test_a_store_that_hangs_while_it_is_cleared_does_not_end_the_rank(tmp_path: Path) -> None:
    may_end, limit = threading.Event(), asyncio.timeout
    async with worker(tmp_path) as it, limit(WAIT_S):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(it.store, "clear", lambda: int(may_end.wait(WAIT_S)), raising=False)
            patch.setattr(asyncio, "timeout", lambda _: limit(0.05))  # of all commands
            clearing = asyncio.create_task(it.follower.clear_stored(0))
            await asyncio.wait((clearing,), timeout=0.2)
        assert not clearing.done()
        assert it.lost == []
        may_end.set()
        assert await clearing == 1


async def test_a_cleared_fetch_writes_no_more(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        await saved(it)
        last = shard_keys([KEYS[2]], range(NUM_PARTS - 1, NUM_PARTS), NUM_PARTS)[0]
        hang = it.store.hangs_at[last] = threading.Event()
        fetch = it.follower.fetch_stored([0, 0], [KEYS[0], KEYS[2]], [7, 0])
        while fetch.num_read < 1:
            await asyncio.sleep(0.01)
        await it.ranks.clear([7, 0], [0])
        wiped = it.pools[1].clone()
        hang.set()
        while not it.store.reads.count(last):
            await asyncio.sleep(0.01)
        assert torch.equal(it.pools[1], wiped)
        assert not wiped[0].any()


async def test_a_lost_rank_ends_its_fetches_and_saves(tmp_path: Path) -> None:
    async with worker(tmp_path) as it, asyncio.timeout(WAIT_S):
        await saved(it)
        hang = it.store.hangs_at[shard_keys([KEYS[0]], range(2, 3), NUM_PARTS)[0]] = threading.Event()
        fetch = it.follower.fetch_stored([0], [KEYS[0]], [7])
        await it.commands.close()
        with pytest.raises(PeerLost):
            await fetch.ended
        with pytest.raises(PeerLost):
            await it.follower.save_stored([1]).copied()
        hang.set()
