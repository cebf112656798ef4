"""A checkpoint as one process serves it: its model, or its part of it, and the memory for KV."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.attention.choice import attention_for
from engine.capacity import context_length, num_blocks_in
from engine.config import EngineConfig, ModelConfig
from engine.cores import cores_of_rank, running_on
from engine.errors import UnsupportedModel
from engine.expert_group import ExpertGroup
from engine.fingerprint import compatibility_fingerprint
from engine.kv_cache import KVCacheLayout
from engine.model_config import read_model_config
from engine.models import Model, load_model
from engine.tensor_parallel import ONE_RANK, TensorGroup
from engine.tensor_shard import TensorShard

FINGERPRINT_DIGITS = 15  # of a fingerprint, that ranks compare: what an int64 holds


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What an engine, or a rank that follows one, has of a checkpoint."""

    config: ModelConfig  # of the whole model
    model: Model
    layout: KVCacheLayout
    kv_parts: int  # of a block of the whole model; those of the layout are this rank's
    pool: Tensor
    max_model_len: int  # of a request: prompt plus output
    fingerprint: str
    cores: tuple[int, ...]  # on which it was loaded, and is to be computed; none: any


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Plain memory for a KV pool, in a process that shares it with nobody."""
    return torch.zeros(shape, dtype=dtype)


def load(
    config: EngineConfig,
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
    on_progress: Callable[[float], None] | None = None,
    group: ExpertGroup | None = None,
    tensor: TensorGroup | None = None,
) -> LoadedModel:
    """Reads a checkpoint, of which a rank of `tensor`, formed, takes its part alone; see `Engine`."""
    shard = tensor.shard if tensor is not None else TensorShard()
    cores = cores_of_rank(config.cores, shard.rank, shard.size)
    with running_on(cores):
        return _load(config, shard, cores, allocate_pool, on_progress, group, tensor)


def _load(
    config: EngineConfig,
    shard: TensorShard,
    cores: tuple[int, ...],
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
    on_progress: Callable[[float], None] | None,
    group: ExpertGroup | None,
    tensor: TensorGroup | None,
) -> LoadedModel:
    directory, device = Path(config.model), torch.device(config.device)
    whole = read_model_config(directory, config.dtype)
    shard.check(whole)
    num_parts = shard.kv_parts(whole, config.kv_parts)
    try:
        layout = KVCacheLayout.of(whole, config.block_size, num_parts, shard.size, config.kv_cache_dtype)
    except ValueError as error:
        raise UnsupportedModel(f"kv_parts: {error}") from error
    num_blocks = num_blocks_in(config, layout)
    max_model_len = context_length(config, whole, num_blocks)
    fingerprint = compatibility_fingerprint(
        directory, whole, config.block_size, num_parts, config.kv_cache_dtype, config.quantization
    )
    if tensor is not None:
        compared = int(fingerprint[:FINGERPRINT_DIGITS], 16)
        tensor.agree(
            ("number of KV blocks", "max_model_len", "model, weights, dtype or block size"),
            (num_blocks, max_model_len, compared),
        )
    heads, kv_dtype = shard.local(whole), config.kv_cache_dtype
    attention = attention_for(heads, config.block_size, device, kv_dtype, layout.num_parts)
    served = replace(whole, max_model_len=max_model_len)
    ranks = tensor or ONE_RANK
    model = load_model(directory, served, device, attention, on_progress, group, ranks, config.quantization)
    pool = allocate_pool(layout.pool_shape(num_blocks), layout.dtype).to(device)
    if tensor is not None:
        tensor.meet()
    return LoadedModel(whole, model, layout, num_parts, pool, max_model_len, fingerprint, cores)
