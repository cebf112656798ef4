"""CUDA graphs of decodes: a step of each batch size is captured once and then replayed with a single launch."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.execution.batch import Batch, PooledOutput
from baton.engine.execution.device import pinned
from baton.engine.layers.moe import MoE
from baton.engine.models.causal_lm import CausalLM
from baton.engine.request import NULL_BLOCK

log = logging.getLogger(__name__)

FIRST_SIZES = (1, 2, 4)  # vLLM's sizes, like the ones below
SMALL_STEP, SMALL_SIZES = 8, 256
LARGE_STEP = 16

Replay = Callable[[], None]


class Recorder(Protocol):
    """Captures a computation so that it can be replayed on the current contents of the same tensors."""

    def record(self, compute: Callable[[], object]) -> Replay:
        """Return a function that replays `compute`, which must write its result to memory that stays allocated."""
        ...


class CudaRecorder:
    """Recorder of CUDA graphs. They share one memory pool, since only one runs at a time and keeps nothing there."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], object]) -> Replay:
        """Capture a CUDA graph after one warm-up run: a library's first call may do things that cannot be captured."""
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            compute()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            compute()
        return graph.replay


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Captured decode of a fixed number of sequences."""

    numbers: Tensor  # input buffer that the graph reads its batch from
    tensors: tuple[Tensor, ...]  # views of `numbers`, in the order of Batch.device_tensors
    replay: Replay


class GraphedModel:
    """Model that replays decodes, padded to the next captured size, and computes everything else eagerly."""

    def __init__(
        self,
        model: CausalLM,
        pool: Tensor,
        sizes: Sequence[int],
        max_blocks: int,
        recorder: Recorder | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Capture a decode of each size. `max_blocks` is per sequence; `on_progress` receives the fraction captured."""
        self._model = model
        self._largest = max(sizes)
        recorder, started_s = recorder or CudaRecorder(), time.monotonic()
        log.info("capturing CUDA graphs of decodes in %d sizes, up to %d sequences", len(sizes), self._largest)
        assert isinstance(model.backend, FlashInferAttention), "see can_be_recorded"
        self._attention = model.backend
        self._attention.reserve(self._largest, max_blocks)
        vocab_size = model.embedding.vocab.stop - model.embedding.vocab.start
        self._logits = torch.empty(self._largest, vocab_size, device=pool.device)  # shared by all sizes
        # The largest first: the others then fit into the memory that it has allocated.
        recorded = []
        for size in sorted(sizes, reverse=True):
            recorded.append((size, self._record(size, pool, recorder)))
            if on_progress is not None:
                on_progress(len(recorded) / len(sizes))
        self._recorded = recorded[::-1]
        log.info("captured CUDA graphs in %.1f s", time.monotonic() - started_s)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Return the logits, which the next step overwrites. `pool` must be the one passed at capture."""
        if not self._is_recorded(batch):
            return self._model.forward(batch, pool)
        size, step = next(entry for entry in self._recorded if entry[0] >= batch.num_seqs)
        padded = _padded(batch, size)
        step.numbers.copy_(pinned(torch.cat(padded.device_tensors()), pool.device), non_blocking=True)
        if batch.sampled_ids is not None:
            step.tensors[0][: batch.num_seqs].copy_(batch.sampled_ids)
        self._model.backend.plan(padded.with_tensors(step.tensors, is_replayed=True))
        step.replay()
        return self._logits[: batch.num_seqs]

    def forward_pooled(self, batch: Batch, pool: Tensor) -> PooledOutput:
        """Compute the step eagerly; see `CausalLM.forward_pooled`."""
        return self._model.forward_pooled(batch, pool)

    def accept(self, counts: Sequence[int]) -> None:
        """Advance recurrent states; see `CausalLM.accept`."""
        self._model.accept(counts)

    def forward_idle(self) -> None:
        """Compute only this rank's experts, for the other ranks of a group."""
        self._model.forward_idle()

    def _is_recorded(self, batch: Batch) -> bool:
        """Return whether the batch is a pure decode with logits of all sequences, of a captured size."""
        is_plain = batch.images is None and not batch.adapters
        is_decode = is_plain and batch.num_decodes == batch.num_seqs == len(batch.logits_indices)
        return is_decode and batch.num_seqs <= self._largest and not self._attention.num_shared_blocks(batch)

    def _record(self, size: int, pool: Tensor, recorder: Recorder) -> RecordedStep:
        rotary = None if self._model.rotary_sections is None else _NOTHING
        batch = _padded(replace(NO_DECODES, rotary_positions=rotary), size)
        numbers = torch.cat(batch.device_tensors()).to(pool.device)
        tensors = numbers.split_with_sizes([len(tensor) for tensor in batch.device_tensors()])
        batch = batch.with_tensors(tensors, is_replayed=True)
        self._model.backend.plan(batch)
        logits = self._logits[:size]
        replay = recorder.record(lambda: logits.copy_(self._model.compute(batch, pool)))
        return RecordedStep(numbers, tensors, replay)


def can_be_recorded(model: CausalLM) -> bool:
    """Return whether decodes consist only of kernel launches; logs the reason if not."""
    if not isinstance(model.backend, FlashInferAttention):
        log.warning("decodes are not captured as CUDA graphs: the attention backend does not support it")
        return False
    if not model.has_head:
        return False  # it never decodes
    if model.is_recurrent:
        log.warning("decodes are not captured as CUDA graphs: the blocks of recurrent states change from step to step")
        return False
    sparse = [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MoE)]
    if not all(layer.stays_on_device for layer in sparse):
        log.warning("decodes are not captured as CUDA graphs: the host must know how many tokens each expert gets")
        return False
    return True


def recorded_sizes(max_num_seqs: int) -> list[int]:
    """Return the batch sizes to capture: dense enough that padding stays small, up to and including `max_num_seqs`."""
    sizes = chain(FIRST_SIZES, range(SMALL_STEP, SMALL_SIZES, SMALL_STEP), range(SMALL_SIZES, max_num_seqs, LARGE_STEP))
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


_NOTHING = torch.empty(0, dtype=torch.int64)
NO_DECODES = Batch(
    token_ids=_NOTHING,
    positions=_NOTHING,
    slot_mapping=_NOTHING,
    query_starts=torch.zeros(1, dtype=torch.int64),
    context_lens=_NOTHING,
    block_tables=torch.empty(0, 1, dtype=torch.int64),
    logits_indices=_NOTHING,
    query_lens_list=[],
    context_lens_list=[],
    num_decodes=0,
)


def _padded(batch: Batch, size: int) -> Batch:
    """Return the batch padded to `size` decodes; the dummy sequences have one token each, in the null block."""
    more = size - batch.num_seqs

    def zero_padded(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, more))

    return replace(
        batch,
        token_ids=zero_padded(batch.token_ids),
        positions=zero_padded(batch.positions),
        rotary_positions=None if batch.rotary_positions is None else zero_padded(batch.rotary_positions),
        slot_mapping=zero_padded(batch.slot_mapping),
        query_starts=torch.arange(size + 1),
        context_lens=F.pad(batch.context_lens, (0, more), value=1),
        block_tables=F.pad(batch.block_tables, (0, 0, 0, more), value=NULL_BLOCK),
        logits_indices=torch.arange(size),
        query_lens_list=[1] * size,
        context_lens_list=batch.context_lens_list + [1] * more,
        num_decodes=size,
    )
