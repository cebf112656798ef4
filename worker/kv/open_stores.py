"""The stores of a worker, as its options name them."""

import uuid
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from baton.kvtransfer.store.breaker import GuardedStore
from baton.kvtransfer.store.factory import open_host_store, open_store
from baton.kvtransfer.store.shared_memory_directory import SHM
from baton.kvtransfer.store.store import StoreUnavailable
from baton.settings.values import OptionError
from baton.worker.base import NO_STORES, Stores
from baton.worker.config import WorkerConfig
from baton.worker.engine_host import EngineHost
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.storing_rank import StoringRank
from baton.worker.kv.tier import Tier
from baton.worker.kv.tiers import KVTiers
from baton.worker.reporting import WorkerCounters

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LONGEST_CALL_S = 2.0  # of a store, to read or write a block; after a longer one it is skipped for a while


def open_stores(
    config: WorkerConfig,
    host: EngineHost,
    pool: Tensor,
    counters: WorkerCounters,
    followers: Sequence[StoringRank] = (),
) -> Stores:
    """Open the worker's stores, fastest first. Raises OptionError if one cannot be used."""
    if not config.has_kv_stores:
        return NO_STORES
    tiers = open_tiers(config, host.origin.fingerprint)
    counters.tiers |= {tier.store.name: tier.counters for tier in tiers}
    return KVTiers(host, RankStores(pool, tiers, host.ranks.parts), counters.fetches, followers)


def open_tiers(config: WorkerConfig, fingerprint: str) -> list[Tier]:
    """Open the stores of a rank, fastest first. Raises OptionError if one cannot be used."""
    tiers: list[Tier] = []
    try:
        for tier in _opened(config, fingerprint):
            tiers.append(tier)
            tier.note_use()
    except BaseException as error:
        for tier in tiers:
            tier.store.close()
        if isinstance(error, StoreUnavailable):
            raise OptionError(f"KV store: {error}") from error
        raise
    return tiers


def _opened(config: WorkerConfig, namespace: str) -> Iterator[Tier]:
    """Yield the tiers, with names that only workers have in common that share them; they contain no secrets."""
    if config.kv_host_memory_bytes is not None:
        memory = open_host_store(namespace, config.kv_host_memory_bytes)
        yield Tier(GuardedStore(memory, LONGEST_CALL_S), _name("host", _place(SHM)), is_memory=True)
    if config.kv_disk is not None:
        disk = open_store(config.kv_disk, namespace, config.kv_disk_bytes, key_file=config.kv_store_key_file)
        yield Tier(GuardedStore(disk, LONGEST_CALL_S), _name("disk", _place(Path(config.kv_disk))))
    if config.kv_store is not None:
        shared = open_store(
            config.kv_store,
            namespace,
            config.kv_store_bytes,
            ttl_s=config.kv_store_ttl_s,
            key_file=config.kv_store_key_file,
            name="shared",
        )
        yield Tier(GuardedStore(shared, LONGEST_CALL_S), _name("shared", config.kv_store))


def _place(path: Path) -> str:
    """Return what identifies a directory among those of all machines: its kernel, device and inode."""
    try:
        kernel = BOOT_ID.read_text()
    except OSError:  # not Linux
        kernel = str(uuid.getnode())
    status = path.stat()
    return f"{kernel.strip()} {status.st_dev} {status.st_ino}"


def _name(*parts: str) -> str:
    return f"{parts[0]}-{blake2b(repr(parts).encode(), digest_size=8).hexdigest()}"
