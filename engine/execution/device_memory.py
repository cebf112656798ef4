"""How much of a GPU's memory is left for KV, by trying the step that takes the most besides."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError
from baton.engine.execution.cuda_graphs import recorded_sizes
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.kv.block_pool import NULL_BLOCK
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import Model
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_budget import MAX_PROMPT_LOGITS

log = logging.getLogger(__name__)

RECORDED_BYTES = 16 << 20  # what a recorded step takes beside its activations: its attention's plan, its launches


class Meter(Protocol):
    """Says what memory a device has, and what is taken of it."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        ...

    @property
    def foreign_bytes(self) -> int:
        """What is taken by others than torch: other processes, libraries, the driver."""
        ...

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        """Most that was torch's at once while this was computed, weights and all."""
        ...


class CudaMeter:
    """See Meter."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        """See Meter."""
        return torch.cuda.mem_get_info(self._device)[1]

    @property
    def foreign_bytes(self) -> int:
        """See Meter."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        """See Meter."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # of loading
        torch.cuda.reset_peak_memory_stats(self._device)
        compute()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


def check_fits(kv_bytes: int, device: torch.device, meter: Meter | None = None) -> None:
    """Raises EngineError if so much KV was asked for that it cannot be on this GPU, whatever the model takes."""
    meter = meter or CudaMeter(device)
    there = meter.total_bytes - meter.foreign_bytes
    if kv_bytes > there:
        raise EngineError(
            f"kv_cache_memory_bytes is {kv_bytes}, but of the {meter.total_bytes} bytes of {device} only {there} are "
            "free, for the model's weights too; leave it out, and the KV cache takes what they leave"
        )


def bytes_for_kv(
    config: EngineConfig,
    max_model_len: int,
    model: Model,
    layout: KVCacheLayout,
    num_columns: int,
    meter: Meter | None = None,
    *,
    records: bool,
) -> int:
    """What `gpu_memory_utilization` leaves beside the weights and the greatest step; perhaps nothing, or less.

    The model, loaded, computes that step here: the ranks that have a model together call this at the same time.
    num_columns: of the logits that this rank gets; records: whether decodes will be recorded.
    """
    device = torch.device(config.device)
    meter = meter or CudaMeter(device)
    pool = torch.zeros(layout.pool_shape(1), dtype=layout.dtype, device=device)
    sampler = Sampler(num_columns, frozenset())  # other ranks than the first draw from what they have
    runner = ModelRunner(model, pool, config.block_size, sampler)
    peak = meter.peak_bytes(lambda: runner.run(greatest_step(config, max_model_len)))
    recorded = 0
    if records:
        at_rest = meter.peak_bytes(lambda: None)
        decodes = meter.peak_bytes(lambda: runner.run(_decodes(config, config.batch_seqs))) - at_rest
        recorded = decodes + RECORDED_BYTES * len(recorded_sizes(config.batch_seqs))
    left = int(meter.total_bytes * config.gpu_memory_utilization) - meter.foreign_bytes - peak - recorded
    log.info(
        "of %.2f GB of GPU memory the model and a step take %.2f, recorded decodes %.2f, others %.2f: %.2f are for KV",
        *(size / 1e9 for size in (meter.total_bytes, peak, recorded, meter.foreign_bytes, left)),
    )
    return left


def greatest_step(config: EngineConfig, max_model_len: int) -> list[ScheduledRequest]:
    """As many requests as there may be, all sampled from, and as many tokens: a long prompt behind short ones.

    Before it stands one of which as many log-probabilities are told as a step may have.
    """
    lengths = [1] * (config.batch_seqs - 1)
    left = config.step_tokens - len(lengths)
    told = min(MAX_PROMPT_LOGITS, left, max_model_len)
    left -= told
    lengths += [max_model_len] * (left // max_model_len) + [left % max_model_len] * (left % max_model_len > 0)
    silent = [_computed_whole(length, config.block_size, place) for place, length in enumerate(lengths)]
    telling = _computed_whole(told, config.block_size, len(lengths), prompt_logprobs=1)
    return sorted([*silent, telling], key=lambda item: item.num_new_tokens > 1)


def _decodes(config: EngineConfig, count: int) -> list[ScheduledRequest]:
    return [_computed_whole(1, config.block_size, place) for place in range(count)]


def _computed_whole(length: int, block_size: int, place: int, prompt_logprobs: int | None = None) -> ScheduledRequest:
    """A prompt whose KV goes to the block that is nobody's; then a token is drawn in the way that takes the most."""
    request = Request(
        request_id=RequestId(f"trial-{place}"),
        token_ids=[0] * length,
        num_prompt_tokens=length,
        sampling=SamplingParams(temperature=1.0, top_p=0.9, prompt_logprobs=prompt_logprobs),
        block_table=[NULL_BLOCK] * -(-length // block_size),
    )
    return ScheduledRequest.of(request, length)
