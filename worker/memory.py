"""Host memory for workers on CPUs, checked against the free memory before any is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.kv.dtype import default_kv_bytes
from baton.engine.speculation.drafts import draft_of
from baton.process.host_memory import HostMemory, in_gib
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig

MIB = 1 << 20
WEIGHTS_SHARE = 0.9  # of the free memory, for KV and offloaded weights; the rest is for activations and libraries


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Host memory that a set of workers will allocate in total."""

    num_pools: int = 0  # KV caches: one a rank
    kv_bytes: int = 0
    weights_bytes: int = 0
    store_bytes: int = 0  # of the store in host memory below the KV caches, which all workers share

    def check(self, memory: HostMemory) -> None:
        """Raise OptionError if it does not fit; the text has the requested, the free and the largest possible size."""
        if self.kv_bytes + self.weights_bytes + self.store_bytes <= memory.free_bytes:
            return
        left = memory.free_bytes - self.weights_bytes - self.store_bytes
        max_mib = left // max(1, self.num_pools) // MIB
        if self.store_bytes and max_mib < 1:
            raise OptionError(
                f"kv_host_memory_bytes: {in_gib(self.store_bytes)} do not fit next to {in_gib(self.weights_bytes)} of "
                f"weights: {memory}; set less, or use kv_disk"
            )
        if max_mib < 1:
            raise OptionError(
                f"model: its weights take {in_gib(self.weights_bytes)} in all workers together, but {memory}; "
                "serve a smaller model or fewer workers"
            )
        is_one = self.num_pools == 1
        store = f" next to {in_gib(self.store_bytes)} of kv_host_memory_bytes" if self.store_bytes else ""
        caches = f"a KV cache of {in_gib(self.kv_bytes)}"
        if not is_one:
            caches = f"{self.num_pools} KV caches of {in_gib(self.kv_bytes)} together"
        raise OptionError(
            f"kv_cache_memory_bytes: {caches} and {in_gib(self.weights_bytes)} of weights{store} do not fit: {memory}; "
            f"{max_mib}MiB{'' if is_one else ' each'} would fit"
        )


def memory_need(workers: Sequence[WorkerConfig], model: ModelConfig) -> MemoryNeed:
    """Return the host memory of workers that serve one model; workers on GPUs need too little to count."""
    need = MemoryNeed()
    for worker in workers:
        engine = worker.engine
        if not engine.is_on_cpu:
            continue
        weights = weights_bytes(Path(engine.model), model, engine.quantization)
        if engine.offload.memory_bytes is not None:
            weights = min(weights, engine.offload.memory_bytes)
        if model.moe is not None:
            weights //= worker.group_size  # approximately: most weights are experts, which are spread over the group
        weights //= worker.nnodes
        if (draft := draft_of(engine, model)) is not None:
            weights += draft.weights_bytes  # rank 0 has all of it
        need = MemoryNeed(
            need.num_pools + worker.ranks_per_node,
            need.kv_bytes + worker.ranks_per_node * (engine.kv_cache_memory_bytes or 0),
            need.weights_bytes + weights,
            max(need.store_bytes, worker.kv_host_memory_bytes or 0),
        )
    return need


def with_weights_memory(engine: EngineConfig, model: ModelConfig, free_bytes: int, num_workers: int) -> EngineConfig:
    """Return the config with the memory for weights, if they are offloaded from a CPU and it is not set.

    It is a worker's share of the free memory that its KV cache and its draft's weights leave; unset, if all weights
    fit.
    """
    if engine.offload.kind != "disk" or engine.offload.memory_bytes is not None:
        return engine
    left = int(free_bytes * WEIGHTS_SHARE) // num_workers - (engine.kv_cache_memory_bytes or 0)
    if (draft := draft_of(engine, model)) is not None:
        left -= draft.weights_bytes
    if left >= weights_bytes(Path(engine.model), model, engine.quantization):
        return engine
    return replace(engine, weights_memory_bytes=max(left, 1))


def with_kv_memory(config: WorkerConfig, memory: HostMemory) -> WorkerConfig:
    """Return the config with its KV cache size. Default: a share of the free memory.

    On a GPU the config is unchanged: the engine measures the free memory. Raises OptionError if memory is too small.
    """
    engine = config.engine
    if not engine.is_on_cpu:
        return config
    model = model_config_of(engine)
    if engine.kv_cache_memory_bytes is None:
        free_bytes = memory.free_bytes - (config.kv_host_memory_bytes or 0)
        draft = draft_of(engine, model)
        token_bytes = draft.token_bytes if draft is not None else 0
        kv_bytes = default_kv_bytes(free_bytes, config.ranks_per_node, model, engine, token_bytes)
        engine = replace(engine, kv_cache_memory_bytes=kv_bytes)
    engine = with_weights_memory(engine, model, memory.free_bytes - (config.kv_host_memory_bytes or 0), 1)
    sized = replace(config, engine=engine)
    memory_need([sized], model).check(memory)
    return sized
