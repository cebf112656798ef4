"""What routers know of the stores below workers' pools."""

from baton.engine.kv.block_hash import hash_blocks
from baton.membership.registry.memory import MemoryRegistry
from baton.router.policy.cluster import CachedTokens
from baton.router.workers.pool import WorkerPool
from tests.unit.router.rigs.pools import ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

HASHES = hash_blocks(list(range(5 * BLOCK_SIZE)), BLOCK_SIZE)


def found(pool: WorkerPool) -> CachedTokens:
    return pool.cached_tokens(pool.snapshot(), lambda _: b"".join(HASHES))


async def test_workers_that_share_a_store_share_what_is_known_of_it() -> None:
    writer, reader, other = (ScriptedWorker(f"decode-{number}") for number in range(3))
    writer.kv_stores, reader.kv_stores, other.kv_stores = ("host-1", "shared-9"), ("host-2", "shared-9"), ("host-3",)
    workers = writer, reader, other
    addresses = [await each.start() for each in workers]
    async with running_pool(MemoryRegistry(addresses)) as pool:
        await until(lambda: ready(pool) == set(addresses))
        assert found(pool) == CachedTokens({}, {})
        writer.saved = HASHES[:4]
        writer.news()
        await until(lambda: bool(found(pool).in_stores))
        expected = {each.incarnation: 4 * BLOCK_SIZE for each in (writer, reader)}
        assert found(pool) == CachedTokens({}, expected)
        writer.lost = HASHES[2:]
        writer.news()
        await until(lambda: found(pool).in_stores[writer.incarnation] == 2 * BLOCK_SIZE)
        await writer.stop()
        await until(lambda: not found(pool).in_stores)  # nobody says any more that it is there
    for each in workers:
        await each.stop()
