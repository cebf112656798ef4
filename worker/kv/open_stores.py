"""The stores of a worker, as its options name them."""

from torch import Tensor

from baton.kvtransfer.store.pool_blocks import PoolBlocks
from baton.kvtransfer.store.store import KVStore
from baton.settings.values import OptionError
from baton.worker.base import NO_STORES, Stores
from baton.worker.config import WorkerConfig
from baton.worker.engine_host import EngineHost
from baton.worker.kv.tier import Tier
from baton.worker.kv.tiers import KVTiers
from baton.worker.reporting import WorkerCounters


def open_stores(config: WorkerConfig, host: EngineHost, pool: Tensor, counters: WorkerCounters) -> Stores:
    """Open the worker's stores, fastest first. Raises OptionError if one cannot be used."""
    if not config.has_kv_stores:
        return NO_STORES
    if host.kv_groups.num_groups > 1 or host.kv_groups.states is not None:
        raise OptionError(
            "kv_host_memory_bytes, kv_disk and kv_store do not support models with recurrent layers, nor "
            "hybrid_kv_cache yet; leave them out"
        )
    tiers = [Tier(store) for store in _opened(config, host)]
    counters.tiers |= {tier.store.name: tier.counters for tier in tiers}
    return KVTiers(host, PoolBlocks(pool), tiers)


def _opened(config: WorkerConfig, host: EngineHost) -> list[KVStore]:
    raise NotImplementedError
