"""Memory that workers on CPUs ask for, compared with the memory that there is before any of it is taken."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.config import ModelConfig
from baton.engine.kv.dtype import default_kv_bytes
from baton.process.host_memory import HostMemory, in_gib
from baton.settings.values import OptionError
from baton.settings.worker_config import WorkerConfig

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of the host that workers are going to take, all together."""

    num_pools: int = 0  # KV caches: one a rank
    kv_bytes: int = 0
    weights_bytes: int = 0

    def check(self, memory: HostMemory) -> None:
        """Raises OptionError saying what was asked for, what there is and what would fit."""
        if self.kv_bytes + self.weights_bytes <= memory.free_bytes:
            return
        left = memory.free_bytes - self.weights_bytes
        fitting = left // max(1, self.num_pools) // MIB
        if fitting < 1:
            raise OptionError(
                f"model: its weights take {in_gib(self.weights_bytes)} in all workers together, but {memory}; "
                "serve a smaller model or fewer workers"
            )
        is_one = self.num_pools == 1
        caches = "a KV cache" if is_one else f"{self.num_pools} KV caches"
        raise OptionError(
            f"kv_cache_memory_bytes: {caches} of {in_gib(self.kv_bytes)}{'' if is_one else ' together'} and "
            f"{in_gib(self.weights_bytes)} of weights do not fit: {memory}; {fitting}MiB{'' if is_one else ' each'} "
            "would fit"
        )


def memory_need(workers: Sequence[WorkerConfig], model: ModelConfig) -> MemoryNeed:
    """Add up the host memory of workers that serve one model; those on GPUs need too little to count."""
    need = MemoryNeed()
    for worker in workers:
        engine = worker.engine
        if not engine.is_on_cpu:
            continue
        weights = weights_bytes(Path(engine.model), model, engine.quantization)
        if model.moe is not None:
            weights //= worker.group_size  # most of it experts, which are spread over the group
        need = MemoryNeed(
            need.num_pools + worker.tensor_parallel,
            need.kv_bytes + worker.tensor_parallel * (engine.kv_cache_memory_bytes or 0),
            need.weights_bytes + weights,
        )
    return need


def with_kv_memory(config: WorkerConfig, memory: HostMemory) -> WorkerConfig:
    """Return the config with a size of the KV cache: unless it was given, a share of the free memory.

    On a GPU the engine measures what is left. Raises OptionError if there is not enough memory.
    """
    engine = config.engine
    if not engine.is_on_cpu:
        return config
    model = read_model_config(Path(engine.model), engine.dtype)
    if engine.kv_cache_memory_bytes is None:
        kv_bytes = default_kv_bytes(memory.free_bytes, config.tensor_parallel, model, engine)
        engine = replace(engine, kv_cache_memory_bytes=kv_bytes)
    sized = replace(config, engine=engine)
    memory_need([sized], model).check(memory)
    return sized
