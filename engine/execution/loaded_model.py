"""A checkpoint loaded into one process: the model, or one rank's shard of it, and the KV pool."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.pooling_config import read_pooling_config
from baton.engine.checkpoint.vocabulary import vocabulary_digest
from baton.engine.checkpoint.weights_hash import WeightsHash
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.cores import cores_of_rank, running_on
from baton.engine.execution.cuda_graphs import GraphedModel, can_be_recorded, recorded_sizes
from baton.engine.execution.device import computing_on
from baton.engine.execution.load_plan import LoadPlan, compared_digits
from baton.engine.experts.group import ExpertGroup
from baton.engine.kv.capacity import configured_context
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.origin import KVOrigin, check_mixable, quantization_name
from baton.engine.lora.adapted_layers import AdaptedLayers
from baton.engine.models import Model, load_model
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.factory import OffloadedModel, WeightsSource, load_with_offload
from baton.engine.parallel.tensor_parallel import ONE_RANK, TensorGroup
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.pooling.config import PoolingConfig
from baton.engine.speculation.draft_weights import load_draft
from baton.engine.speculation.medusa.medusa_heads import MedusaHeads
from baton.engine.speculation.model_drafter import TwinModel
from baton.engine.vision.encoder import VisionEncoder

log = logging.getLogger(__name__)

WEIGHTS_SHARE = 0.8  # of the loading progress, if CUDA graphs are captured afterwards


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
    weights_source: WeightsSource
    generates: bool  # False for an embedding checkpoint without an output layer
    pooling: PoolingConfig | None = None  # None: the model makes no embeddings
    vision: VisionEncoder | None = None  # None: the model takes no images
    adapted: AdaptedLayers | None = None  # None: adapters are not enabled
    draft_model: TwinModel | MedusaHeads | None = None  # or a draft head; None: there is none, or rank 0 has it


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
        with ExitStack() as on_failure:
            with WeightsHash(Path(config.model)) as weights_hash:
                plan = LoadPlan.of(config, whole, shard, is_expert_parallel=group is not None)
                loaded = _load(plan, cores, allocate_pool, on_progress, group, tensor, weights_hash, on_failure)
            if pooling is None and not loaded.generates:
                raise UnsupportedModel(
                    f"{config.model} has no lm_head, so it cannot generate; set pooling to last, mean or cls"
                )
            on_failure.pop_all()
    return replace(loaded, pooling=pooling)


def _load(
    plan: LoadPlan,
    cores: tuple[int, ...],
    allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor],
    on_progress: Callable[[float], None] | None,
    group: ExpertGroup | None,
    tensor: TensorGroup | None,
    weights_hash: WeightsHash,
    on_failure: ExitStack,
) -> LoadedModel:
    """Load the model and what it computes with. on_failure: gets what must be closed if the load fails later."""
    config, device = plan.config, torch.device(plan.config.device)
    size, is_measured = plan.size_beforehand(group)
    if tensor is not None:
        plan.agree(tensor, size)
    is_eager = config.is_on_cpu or config.enforce_eager or config.offload.enabled
    may_record = tensor is None and group is None and not is_eager
    on_loaded = _share_of(on_progress, 0.0, WEIGHTS_SHARE if may_record else 1.0)
    offloaded = _load_weights(plan, size.max_model_len, on_loaded, group, tensor, weights_hash)
    on_failure.callback(offloaded.source.close)
    model = offloaded.model
    weights = load_draft(plan.draft, model, device) if plan.draft is not None and plan.shard.rank == 0 else None
    records = may_record and can_be_recorded(model)
    if is_measured:
        size = plan.measured_size(model, size.max_model_len, tensor, records=records)
    pool = _pool(plan.layout.pool_shape(size.num_blocks), plan.layout.dtype, device, allocate_pool)
    draft = None if weights is None else weights.with_blocks(size.num_blocks, plan.whole.eos_token_ids)
    origin = KVOrigin(quantization_name(config, plan.whole), plan.fingerprint(weights_hash.revision()))
    if tensor is not None:
        tensor.barrier()
        tensor.agree(("weights",), (compared_digits(origin.fingerprint),), "x")
    on_captured = _share_of(on_progress, WEIGHTS_SHARE, 1.0)
    served = _recorded(model, pool, config, size.max_model_len, on_captured) if records else model
    return LoadedModel(
        plan.whole,
        served,
        plan.layout,
        plan.num_parts,
        plan.groups,
        pool,
        size.max_model_len,
        plan.mixed_fingerprint() if config.allow_mixed_quantization else origin.fingerprint,
        origin,
        vocabulary_digest(Path(config.tokenizer_directory)),
        cores,
        offloaded.source,
        generates=model.has_head,
        vision=model.vision,
        adapted=model.adapted,
        draft_model=draft,
    )


def _load_weights(
    plan: LoadPlan,
    max_model_len: int,
    on_progress: Callable[[float], None] | None,
    group: ExpertGroup | None,
    tensor: TensorGroup | None,
    weights_hash: WeightsHash,
) -> OffloadedModel:
    """Load the model's own weights, which may stay outside of the device's memory."""
    config = plan.config
    return load_with_offload(
        config,
        plan.whole,
        weights_hash.revision,
        lambda placement: load_model(
            Path(config.model),
            replace(plan.whole, max_model_len=max_model_len),
            torch.device(config.device),
            plan.attention(),
            on_progress,
            group,
            tensor or ONE_RANK,
            config.quantization,
            plan.groups,
            config.lora,
            placement,
        ),
    )


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
