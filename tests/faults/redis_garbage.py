"""Garbage in the Redis that is a cluster's registry."""

import random
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

PREFIX = b"baton:{default}:"
SETS = {b"workers": b"worker:", b"routers": b"router:"}  # key prefix of a set's ids
RENDEZVOUS = b"rendezvous:default"
CHANNEL = b"changes"
LARGE_BYTES = 1 << 20
NUM_IDS = 200  # added at once
TEXTS = (
    b"", b"\xff", b"\xc3\x28", b"\x00", b"no JSON", b"null", b"[]", b"{}", b'"\xff"', b"NaN", b"1e999", b"-0",
    b"[" * 100_000, b'{"a":' * 5_000, b'{"address": 7}', b'{"address": "nowhere"}', b'{"worker_id": 7}',
    b'{"worker_id":"\xff","incarnation":"x","role":"decode","address":"127.0.0.1:1","model":"m","fingerprint":"f",'
    b'"block_size":16,"max_num_seqs":1}',
    b'{"worker_id":"w","incarnation":"x","role":"decode","address":"unix:/tmp/x","model":"m","fingerprint":"f",'
    b'"block_size":16,"max_num_seqs":1}',
    b'{"worker_id":"w","incarnation":"y","role":"king","address":"127.0.0.1:1","model":"m","fingerprint":"f",'
    b'"block_size":-1,"max_num_seqs":1e300}',
    b'{"worker_id":"w\\n","incarnation":"z","role":"both","address":"127.0.0.1:1","model":"bundled_model",'
    b'"fingerprint":"f","block_size":99999999999999999999,"max_num_seqs":1}',
    b'{"worker_id":"w","incarnation":"dead","role":"both","address":"127.0.0.1:1","model":"bundled_model",'
    b'"fingerprint":"f","block_size":16,"max_num_seqs":1}',
    b'{"router_id":"r","model":"bundled_model","time_s":NaN,"traffic":{"window_s":-1,"num_requests":1e999}}',
)  # fmt: skip


async def garbage_in_redis(url: str, rng: random.Random) -> None:
    """Write something random into one of the keys or channels that Baton uses."""
    async with Redis.from_url(url) as redis:
        with suppress(ResponseError):  # a worker may write its key again meanwhile
            await rng.choice((publish, add_ids, overwrite, replace_type, change_life, mutate))(redis, rng)


async def publish(redis: Any, rng: random.Random) -> None:
    """Publish random messages that no worker sends."""
    for _ in range(rng.randint(1, 50)):
        await redis.publish(PREFIX + CHANNEL, garbage(rng))


async def add_ids(redis: Any, rng: random.Random) -> None:
    """Add ids to a set, some of them with a value."""
    name, behind = rng.choice(list(SETS.items()))
    ids = [garbage(rng) or b"id" for _ in range(rng.randint(1, NUM_IDS))]
    await redis.sadd(PREFIX + name, *ids)
    for each in ids[: rng.randint(0, 20)]:
        await redis.set(PREFIX + behind + each, garbage(rng), px=rng.choice((1, 50, 2000)))


async def overwrite(redis: Any, rng: random.Random) -> None:
    """Overwrite the value of an existing key."""
    await redis.set(await _key(redis, rng), garbage(rng))


async def replace_type(redis: Any, rng: random.Random) -> None:
    """Replace an existing key by a value of another type."""
    key, value = await _key(redis, rng), garbage(rng)
    await redis.delete(key)
    fill = rng.choice(("rpush", "hset", "zadd", "sadd", "set"))
    arguments = {"hset": (value, value), "zadd": ({value: 1.0},)}.get(fill, (value,))
    await getattr(redis, fill)(key, *arguments)


async def change_life(redis: Any, rng: random.Random) -> None:
    """Expire a key, or make it persistent."""
    key = await _key(redis, rng)
    change = rng.choice((None, -1, 1))
    await (redis.persist(key) if change is None else redis.pexpire(key, change))


async def mutate(redis: Any, rng: random.Random) -> None:
    """Change one byte of an existing value."""
    keys = [key async for key in redis.scan_iter(PREFIX + b"*", _type="string")]
    if not keys:
        return
    key = rng.choice(sorted(keys))
    if length := await redis.strlen(key):
        await redis.setrange(key, rng.randrange(length), rng.randbytes(1))


async def _key(redis: Any, rng: random.Random) -> bytes:
    keys = {key async for key in redis.scan_iter(PREFIX + b"*")}
    return rng.choice(sorted(keys | {PREFIX + name for name in (*SETS, RENDEZVOUS)}))


def garbage(rng: random.Random) -> bytes:
    """Generate bytes that are invalid or wrong."""
    if rng.random() < 0.02:
        return rng.randbytes(1) * LARGE_BYTES
    return rng.choice(TEXTS) if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 60))
