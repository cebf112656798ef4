"""A checkpoint as one process serves it: its model, or its part of it, and the memory for KV."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.attention.choice import attention_for
from engine.attention.flashinfer import FlashInferAttention
from engine.capacity import CPU_KV_BYTES, context_length, given_context, num_blocks_in
from engine.config import EngineConfig, ModelConfig
from engine.cores import cores_of_rank, running_on
from engine.device import computing_on
from engine.device_memory import bytes_for_kv
from engine.errors import EngineError, UnsupportedModel
from engine.expert_group import ExpertGroup
from engine.fingerprint import compatibility_fingerprint
from engine.graphed_model import GraphedModel, can_be_recorded, recorded_sizes
from engine.kv_cache import KVCacheLayout
from engine.layers.fp8_weight import products_of
from engine.model_config import read_model_config
from engine.models import Model, load_model
from engine.tensor_parallel import ONE_RANK, TensorGroup
from engine.tensor_shard import TensorShard

WEIGHTS_SHARE = 0.8  # of the loading, where decodes are recorded behind it
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
    with running_on(cores), computing_on(torch.device(config.device)):
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
    kv_bytes, num_blocks, max_model_len = config.kv_cache_memory_bytes, 0, given_context(config, whole)
    if kv_bytes is None and device.type == "cpu":
        kv_bytes = CPU_KV_BYTES
    if kv_bytes is not None:  # else it is known when the model is loaded
        num_blocks = num_blocks_in(kv_bytes, layout)
        max_model_len = context_length(config, whole, num_blocks, kv_bytes)
    elif group is not None:
        raise EngineError(
            "expert_parallel on GPUs needs kv_cache_memory_bytes: how much a rank has left is not measured"
        )
    products = config.quantization or products_of(whole.stored_quantization, whole.dtype, device)
    fingerprint = compatibility_fingerprint(
        directory, whole, config.block_size, num_parts, config.kv_cache_dtype, products
    )
    if tensor is not None:
        compared = int(fingerprint[:FINGERPRINT_DIGITS], 16)
        tensor.agree(
            ("number of KV blocks", "max_model_len", "model, weights, dtype or block size"),
            (num_blocks, max_model_len, compared),
        )
    heads, kv_dtype = shard.local(whole), config.kv_cache_dtype
    attention = attention_for(heads, config.block_size, device, kv_dtype, layout.num_parts)
    if isinstance(attention, FlashInferAttention) and config.step_tokens > (attention.most_tokens or math.inf):
        raise EngineError(
            f"max_num_batched_tokens is {config.step_tokens}, but with MLA a GPU takes at most {attention.most_tokens}"
        )
    served = replace(whole, max_model_len=max_model_len)
    ranks = tensor or ONE_RANK
    may_record = tensor is None and group is None and not (config.is_on_cpu or config.enforce_eager)
    told = _share_of(on_progress, 0.0, WEIGHTS_SHARE if may_record else 1.0)
    loaded = load_model(directory, served, device, attention, told, group, ranks, config.quantization)
    records = may_record and can_be_recorded(loaded)
    if kv_bytes is None:
        columns = whole.vocab_size if shard.rank == 0 else len(range(whole.vocab_size)[shard.of(whole.vocab_size)])
        kv_bytes = bytes_for_kv(config, max_model_len, loaded, layout, columns, records=records)
        if tensor is not None:
            kv_bytes = tensor.least(kv_bytes)
        num_blocks = num_blocks_in(kv_bytes, layout)
        max_model_len = context_length(config, whole, num_blocks, kv_bytes)
    shape = layout.pool_shape(num_blocks)
    is_on_cpu = device.type == "cpu"  # what is allocated for peers to map is the host's memory
    pool = allocate_pool(shape, layout.dtype) if is_on_cpu else torch.zeros(shape, dtype=layout.dtype, device=device)
    model: Model = loaded
    if tensor is not None:
        tensor.meet()
    elif records:
        max_blocks = -(-max_model_len // config.block_size)
        told = _share_of(on_progress, WEIGHTS_SHARE, 1.0)
        model = GraphedModel(loaded, pool, recorded_sizes(config.batch_seqs), max_blocks, on_progress=told)
    return LoadedModel(whole, model, layout, num_parts, pool, max_model_len, fingerprint, cores)


def _share_of(on_progress: Callable[[float], None] | None, start: float, end: float) -> Callable[[float], None] | None:
    """Who hears of a part of the loading, which goes from `start` to `end` of all of it."""
    if on_progress is None:
        return None
    return lambda done: on_progress(start + (end - start) * done)
