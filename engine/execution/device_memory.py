"""GPU memory left for KV, measured by running the step that uses the most memory."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError
from baton.engine.execution.cuda_graphs import recorded_sizes
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models.causal_lm import CausalLM
from baton.engine.request import NULL_BLOCK, BlockId, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_budget import MAX_PROMPT_LOGITS
from baton.engine.speculation.config import SpeculationConfig
from baton.engine.vision.encoder import VisionEncoder
from baton.engine.vision.image import largest_image
from baton.engine.vision.step_images import CACHE_BYTES

log = logging.getLogger(__name__)

SPARE_SHARE = 0.05  # of the GPU, left free if other processes leave less than the share
OWN_BYTES = 2 << 30  # most memory outside of torch that counts as this process's: CUDA's context and libraries
RECORDED_BYTES = 16 << 20  # per captured step, in addition to activations: attention plan and graph


class Meter(Protocol):
    """Memory counters of a device."""

    @property
    def total_bytes(self) -> int:
        """Total memory of the device."""
        ...

    @property
    def non_torch_bytes(self) -> int:
        """Memory not used by torch in this process: other processes, libraries, the driver."""
        ...

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        """Run `compute` and return torch's peak allocation during it, including the weights."""
        ...


class CudaMeter:
    """Memory counters of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        """Total memory of the GPU."""
        return torch.cuda.mem_get_info(self._device)[1]

    @property
    def non_torch_bytes(self) -> int:
        """Memory used by other processes, libraries and the driver."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        """Run `compute` and return torch's peak allocation during it, including the weights."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # memory cached while loading
        torch.cuda.reset_peak_memory_stats(self._device)
        compute()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


def check_fits(kv_bytes: int, device: torch.device, meter: Meter | None = None) -> None:
    """Raise EngineError if `kv_bytes` exceeds the free memory of the GPU, even without a model."""
    meter = meter or CudaMeter(device)
    free_bytes = meter.total_bytes - meter.non_torch_bytes
    if kv_bytes > free_bytes:
        raise EngineError(
            f"kv_cache_memory_bytes is {kv_bytes}, but only {free_bytes} of the {meter.total_bytes} bytes of {device} "
            "are free, and the weights need memory too; leave it unset to use what the weights leave"
        )


def bytes_for_kv(
    config: EngineConfig,
    max_model_len: int,
    model: CausalLM,
    layout: KVCacheLayout,
    num_columns: int,
    meter: Meter | None = None,
    *,
    records: bool,
    encoder: VisionEncoder | None = None,
    groups: KVGroups | None = None,
) -> int:
    """Return the bytes of `gpu_memory_utilization` that the weights and the largest step leave; may be 0 or negative.

    The share is this process's: what other processes use does not count, unless it leaves less than that.
    Runs that step on the loaded model, so all ranks of a tensor-parallel group must call this at the same time.
    `num_columns` is the number of logits columns on this rank; `records`: decodes will be captured; `encoder`: of the
    model's images, which runs before the step and keeps the embeddings of recent ones; `groups`: with the layout of
    recurrent state, if there is any. All requests of the measured step share the blocks of one state.
    """
    device = torch.device(config.device)
    meter = meter or CudaMeter(device)
    num_state_blocks = groups.num_state_blocks if groups is not None else 0
    pool = torch.zeros(layout.pool_shape(1 + num_state_blocks), dtype=layout.dtype, device=device)
    sampler = Sampler(num_columns, frozenset())  # ranks other than 0 sample from the columns that they have
    runner = ModelRunner(model, pool, config.block_size, sampler, groups=groups)
    step = greatest_step(config, max_model_len)
    for item in step:
        item.request.state_blocks = [BlockId(block) for block in range(1, 1 + num_state_blocks)]
    peak = meter.peak_bytes(lambda: runner.run(step)) + _image_bytes(config, model)
    if encoder is not None:
        image = largest_image(encoder.config, max_model_len)
        peak = max(peak, meter.peak_bytes(lambda: encoder.encode(image))) + CACHE_BYTES
    recorded = 0
    if records:
        at_rest = meter.peak_bytes(lambda: None)
        decodes = meter.peak_bytes(lambda: runner.run(_decodes(config, config.batch_seqs))) - at_rest
        recorded = decodes + RECORDED_BYTES * len(recorded_sizes(config.batch_seqs))
    total, outside = meter.total_bytes, meter.non_torch_bytes
    share = int(total * config.gpu_memory_utilization) - min(outside, OWN_BYTES)
    left = min(share, int(total * (1 - SPARE_SHARE)) - outside) - peak - recorded
    log.info(
        "GPU memory in GB: total %.2f, model and largest step %.2f, CUDA graphs %.2f, non-torch %.2f, left for KV %.2f",
        *(size / 1e9 for size in (total, peak, recorded, outside, left)),
    )
    return left


def _image_bytes(config: EngineConfig, model: CausalLM) -> int:
    """Return the bytes of the embeddings of a step in which all tokens are those of images."""
    if model.rotary_sections is None:
        return 0
    nothing = model.embedding.nothing()
    return config.step_tokens * nothing.shape[1] * nothing.itemsize


def greatest_step(config: EngineConfig, max_model_len: int) -> list[ScheduledRequest]:
    """Return a step with the most requests, all of which sample, and the most tokens: long prompts after short ones.

    One more request has prompt logprobs. With speculation, as many tokens are drafted as a step may have, for as many
    requests as possible, since their logits are copied to be sampled; what is left of them is for prompt logprobs.
    """
    num_short = config.batch_seqs - 1
    left = config.step_tokens - num_short
    drafts = _most_drafts(config, max_model_len, num_short, left)
    left -= sum(drafts)
    num_logprobs = min(MAX_PROMPT_LOGITS - sum(drafts), left, max_model_len)
    left -= num_logprobs
    lengths = [1] * num_short
    lengths += [max_model_len] * (left // max_model_len) + [left % max_model_len] * (left % max_model_len > 0)
    items = [_computed_whole(length, config.block_size, place) for place, length in enumerate(lengths)]
    short = zip(items[:num_short], drafts, strict=True)
    items[:num_short] = [_with_drafts(item, count, config.block_size) for item, count in short]
    items.append(_computed_whole(num_logprobs, config.block_size, len(lengths), prompt_logprobs=1))
    return sorted(items, key=lambda item: (item.num_new_tokens > 1, -len(item.drafts)))


def _most_drafts(config: EngineConfig, max_model_len: int, num_requests: int, num_tokens: int) -> list[int]:
    """Return the numbers of drafted tokens of each of `num_requests`, of which `num_tokens` are left in the step.

    A prompt of two tokens, whose first has a logprob, fits too.
    """
    options = SpeculationConfig.parse(config.speculative_config)
    if options is None or not num_requests:
        return [0] * num_requests
    longest = min(options.num_speculative_tokens, max_model_len - 1)
    most = max(min(num_requests * longest, MAX_PROMPT_LOGITS - 2, num_tokens - 2), 0)
    return [most // num_requests + (place < most % num_requests) for place in range(num_requests)]


def _with_drafts(item: ScheduledRequest, count: int, block_size: int) -> ScheduledRequest:
    """Return a request of one token with `count` drafted ones, whose KV goes to the null block too."""
    item.request.block_table = [NULL_BLOCK] * -(-(1 + count) // block_size)
    return item.with_drafts([0] * count)


def _decodes(config: EngineConfig, count: int) -> list[ScheduledRequest]:
    return [_computed_whole(1, config.block_size, place) for place in range(count)]


def _computed_whole(length: int, block_size: int, place: int, prompt_logprobs: int | None = None) -> ScheduledRequest:
    """Return a prompt that writes its KV to the null block and samples in the way that needs the most memory."""
    request = Request(
        request_id=RequestId(f"trial-{place}"),
        token_ids=[0] * length,
        num_prompt_tokens=length,
        sampling=SamplingParams(temperature=1.0, top_p=0.9, prompt_logprobs=prompt_logprobs),
        block_table=[NULL_BLOCK] * -(-length // block_size),
    )
    return ScheduledRequest.of(request, length)
