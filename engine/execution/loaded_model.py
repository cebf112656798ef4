"""A checkpoint loaded into one process: the model, or one rank's shard of it, and the KV pool."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.attention.grouped import GroupedAttention
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.pooling_config import read_pooling_config
from baton.engine.checkpoint.vocabulary import vocabulary_digest
from baton.engine.checkpoint.weights_hash import WeightsHash
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError, UnsupportedModel
from baton.engine.execution.cores import cores_of_rank, running_on
from baton.engine.execution.cuda_graphs import GraphedModel, can_be_recorded, recorded_sizes
from baton.engine.execution.device import computing_on
from baton.engine.execution.device_memory import bytes_for_kv, check_fits
from baton.engine.experts.group import ExpertGroup
from baton.engine.kv.capacity import PoolSize, configured_context, configured_kv_bytes
from baton.engine.kv.fingerprint import compatibility_fingerprint, mixed_fingerprint
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.origin import KVOrigin, check_mixable, quantization_name
from baton.engine.kv.state_layout import check_recurrent
from baton.engine.layers.fp8_weight import products_of
from baton.engine.lora.adaptable import check_adaptable
from baton.engine.lora.adapted_linears import AdaptedLinears
from baton.engine.models import Model, load_model
from baton.engine.models.causal_lm import CausalLM
from baton.engine.parallel.tensor_parallel import ONE_RANK, TensorGroup
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.pooling.config import PoolingConfig
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.engine.speculation.draft_model import DraftModel, load_draft_weights, with_blocks
from baton.engine.vision.encoder import VisionEncoder

log = logging.getLogger(__name__)

WEIGHTS_SHARE = 0.8  # of the loading progress, if CUDA graphs are captured afterwards
FINGERPRINT_DIGITS = 15  # hex digits of a fingerprint that ranks compare: as many as an int64 holds


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint as loaded by an engine, or by a tensor-parallel rank that follows one."""

    config: ModelConfig  # of the whole model
    model: Model
    layout: KVCacheLayout
    kv_parts: int  # shards of a block of the whole model; `layout` has this rank's
    groups: KVGroups
    pool: Tensor
    max_model_len: int  # longest prompt plus output
    fingerprint: str  # of the KV that it exchanges
    origin: KVOrigin  # of the KV that it computes
    vocabulary: str  # digest of the tokenizer's tokens and ids; empty: there is no tokenizer
    cores: tuple[int, ...]  # cores that loaded the model and must compute it; empty: any
    generates: bool  # False for an embedding checkpoint without an output layer
    pooling: PoolingConfig | None = None  # None: the model makes no embeddings
    vision: VisionEncoder | None = None  # None: the model takes no images
    adapted: AdaptedLinears | None = None  # None: adapters are not enabled
    draft_model: DraftModel | None = None  # None: there is none, or rank 0 has it


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate a zeroed KV pool in ordinary memory, which is not shared with other processes."""
    return torch.zeros(shape, dtype=dtype)


def load(
    config: EngineConfig,
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
    on_progress: Callable[[float], None] | None = None,
    group: ExpertGroup | None = None,
    tensor: TensorGroup | None = None,
) -> LoadedModel:
    """Load a checkpoint; a rank of `tensor`, which must have formed, loads only its shard. See `Engine`."""
    shard = tensor.shard if tensor is not None else TensorShard()
    cores = cores_of_rank(config.cores, *(tensor.place_on_node if tensor is not None else (0, 1)))
    with running_on(cores), computing_on(torch.device(config.device)):
        whole = model_config_of(config)
        if config.allow_mixed_quantization:
            check_mixable(whole)
        context = configured_context(config, whole)
        if config.max_model_len is None and context < whole.max_model_len:
            log.warning(
                "max_model_len is %d, the original context of LongRoPE; it may be up to %d, with another embedding "
                "that is less exact for short requests",
                context,
                whole.max_model_len,
            )
        whole = replace(whole, rope=whole.rope.for_context(context))
        pooling = read_pooling_config(Path(config.model), whole.hidden_size, config.pooling)
        with WeightsHash(Path(config.model)) as weights_hash:
            loaded = _load(config, whole, shard, cores, allocate_pool, on_progress, group, tensor, weights_hash)
    if pooling is None and not loaded.generates:
        raise UnsupportedModel(
            f"{config.model} has no lm_head, so it cannot generate; set pooling to last, mean or cls"
        )
    return replace(loaded, pooling=pooling)


def _load(
    config: EngineConfig,
    whole: ModelConfig,
    shard: TensorShard,
    cores: tuple[int, ...],
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
    on_progress: Callable[[float], None] | None,
    group: ExpertGroup | None,
    tensor: TensorGroup | None,
    weights_hash: WeightsHash,
) -> LoadedModel:
    directory, device = Path(config.model), torch.device(config.device)
    shard.check(whole)
    check_recurrent(config, whole, shard.size, is_expert_parallel=group is not None)
    check_adaptable(config, whole, is_expert_parallel=group is not None)
    num_parts = shard.kv_parts(whole, config.kv_shards)
    groups = KVGroups.of(config, whole)
    try:
        layout = KVCacheLayout.of(whole, config.block_size, num_parts, shard.size, config.kv_cache_dtype, groups)
    except ValueError as error:
        raise UnsupportedModel(f"kv_shards: {error}") from error
    groups = groups.with_states(config, whole, layout.block_bytes)
    draft = DraftCheckpoint.of(config, whole)
    draft_block_bytes = draft.block_bytes if draft is not None else 0
    size, is_measured = _size_beforehand(config, whole, layout, groups, group, draft_block_bytes)
    products = config.quantization or products_of(whole.stored_quantization, whole.dtype, device)

    def fingerprint_with(weights_revision: str) -> str:
        return compatibility_fingerprint(
            directory,
            whole,
            config.block_size,
            weights_revision,
            Path(config.tokenizer_directory),
            num_parts,
            config.kv_cache_dtype,
            products,
            groups,
        )

    if tensor is not None:
        _agree(tensor, size, fingerprint_with("of any"))
    attention = _attention(config, shard.local(whole), layout, groups)
    may_record = tensor is None and group is None and not (config.is_on_cpu or config.enforce_eager)
    model = load_model(
        directory,
        replace(whole, max_model_len=size.max_model_len),
        device,
        attention,
        _share_of(on_progress, 0.0, WEIGHTS_SHARE if may_record else 1.0),
        group,
        tensor or ONE_RANK,
        config.quantization,
        groups,
        config.lora,
    )
    draft_weights = load_draft_weights(draft, device) if draft is not None and shard.rank == 0 else None
    records = may_record and can_be_recorded(model)
    if is_measured:
        kv_bytes = bytes_for_kv(
            config,
            size.max_model_len,
            model,
            layout,
            _num_columns(whole, shard),
            records=records,
            encoder=model.vision,
            groups=groups,
        )
        kv_bytes = tensor.minimum(kv_bytes) if tensor is not None else kv_bytes
        if kv_bytes <= 0:
            raise EngineError(
                f"the weights, the largest step and other processes leave no memory of {device} for KV: raise "
                f"gpu_memory_utilization ({config.gpu_memory_utilization}) or lower max_num_batched_tokens"
            )
        size = PoolSize.in_bytes(kv_bytes, config, whole, layout, groups, draft_block_bytes)
    pool = _pool(layout.pool_shape(size.num_blocks), layout.dtype, device, allocate_pool)
    origin = KVOrigin(quantization_name(config, whole), fingerprint_with(weights_hash.revision()))
    if tensor is not None:
        tensor.barrier()
        tensor.agree(("weights",), (_number(origin.fingerprint),), "x")
    fingerprint = origin.fingerprint
    if config.allow_mixed_quantization:
        tokenizer = Path(config.tokenizer_directory)
        fingerprint = mixed_fingerprint(tokenizer, whole, config.block_size, num_parts, config.kv_cache_dtype, groups)
    on_captured = _share_of(on_progress, WEIGHTS_SHARE, 1.0)
    served = _recorded(model, pool, config, size.max_model_len, on_captured) if records else model
    return LoadedModel(
        whole,
        served,
        layout,
        num_parts,
        groups,
        pool,
        size.max_model_len,
        fingerprint,
        origin,
        vocabulary_digest(Path(config.tokenizer_directory)),
        cores,
        generates=model.has_head,
        vision=model.vision,
        adapted=model.adapted,
        draft_model=with_blocks(draft, draft_weights, device, size.num_blocks, whole.eos_token_ids)
        if draft is not None and draft_weights is not None
        else None,
    )


def _size_beforehand(
    config: EngineConfig,
    whole: ModelConfig,
    layout: KVCacheLayout,
    groups: KVGroups,
    group: ExpertGroup | None,
    draft_block_bytes: int,
) -> tuple[PoolSize, bool]:
    """Return the pool's size, and whether its number of blocks must be measured once the model is loaded."""
    kv_bytes = configured_kv_bytes(config)
    if kv_bytes is not None:
        if not config.is_on_cpu:
            check_fits(kv_bytes, torch.device(config.device))
        return PoolSize.in_bytes(kv_bytes, config, whole, layout, groups, draft_block_bytes), False
    if group is not None:
        raise EngineError(
            "expert_parallel on GPUs needs kv_cache_memory_bytes: the memory left for KV is not measured there"
        )
    return PoolSize(0, configured_context(config, whole)), True


def _agree(tensor: TensorGroup, size: PoolSize, fingerprint: str) -> None:
    """Compare the ranks' settings before they load anything; their weights are compared after loading."""
    tensor.agree(("number of KV blocks", "max_model_len"), (size.num_blocks, size.max_model_len))
    tensor.agree(("model, dtype or block size",), (_number(fingerprint),), "x")


def _number(fingerprint: str) -> int:
    """Return the digits of a fingerprint that ranks compare."""
    return int(fingerprint.partition("-")[2][:FINGERPRINT_DIGITS], 16)


def _attention(config: EngineConfig, heads: ModelConfig, layout: KVCacheLayout, groups: KVGroups) -> AttentionBackend:
    """Return the attention backend; `heads` is the config with this rank's heads only."""
    device = torch.device(config.device)
    attention, *others = [
        attention_for(heads, config.block_size, device, config.kv_cache_dtype, layout.num_parts) for _ in groups.spans
    ]
    if others:
        return GroupedAttention([attention, *others])
    if isinstance(attention, FlashInferAttention) and config.step_tokens > (attention.most_tokens or math.inf):
        raise EngineError(
            f"max_num_batched_tokens is {config.step_tokens}, but MLA on a GPU allows at most {attention.most_tokens}"
        )
    return attention


def _num_columns(whole: ModelConfig, shard: TensorShard) -> int:
    """Return how many logits columns this rank gets: rank 0 gathers all of them, the others have their own."""
    ours = range(whole.vocab_size)[shard.of(whole.vocab_size)]
    return whole.vocab_size if shard.rank == 0 else len(ours)


def _pool(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
) -> Tensor:
    """Allocate the KV pool; `allocate_pool` is for host memory only, which peers can map."""
    return allocate_pool(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)


def _recorded(
    model: CausalLM, pool: Tensor, config: EngineConfig, max_model_len: int, on_progress: Callable[[float], None] | None
) -> Model:
    max_blocks = -(-max_model_len // config.block_size)
    return GraphedModel(model, pool, recorded_sizes(config.batch_seqs), max_blocks, on_progress=on_progress)


def _share_of(on_progress: Callable[[float], None] | None, start: float, end: float) -> Callable[[float], None] | None:
    """Return a progress callback that maps its range of 0 to 1 to `start` to `end` of `on_progress`."""
    if on_progress is None:
        return None
    return lambda done: on_progress(start + (end - start) * done)
