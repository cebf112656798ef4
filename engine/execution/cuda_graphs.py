"""Decodes as CUDA graphs: a step of known size is recorded once, and its kernels are launched together from then on."""

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
from baton.engine.execution.batch import Batch
from baton.engine.execution.device import pinned
from baton.engine.kv.block_pool import NULL_BLOCK
from baton.engine.layers.moe import MoE
from baton.engine.models.causal_lm import CausalLM

log = logging.getLogger(__name__)

FIRST_SIZES = (1, 2, 4)  # as in vLLM, so are the others
SMALL_STEP, SMALL_SIZES = 8, 256
LARGE_STEP = 16

Replay = Callable[[], None]


class Recorder(Protocol):
    """Records what is computed, to be computed again with what then stands in the same tensors."""

    def record(self, compute: Callable[[], object]) -> Replay:
        """What computes it again. What it gives is to be written to memory that stays."""
        ...


class CudaRecorder:
    """Owns the memory that all recorded steps share: one runs at a time, and leaves nothing there."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], object]) -> Replay:
        """See Recorder. Computes it once before, since a library's first call may do what cannot be recorded."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            compute()
        return graph.replay


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A decode of so many sequences."""

    numbers: Tensor  # what was recorded reads its batch here
    tensors: tuple[Tensor, ...]  # views of it, as Batch.device_tensors
    replay: Replay


class GraphedModel:
    """A model whose decodes are replayed, in the next greater of some sizes; everything else it computes as ever."""

    def __init__(
        self,
        model: CausalLM,
        pool: Tensor,
        sizes: Sequence[int],
        max_blocks: int,
        recorder: Recorder | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Records a decode of each of the sizes; max_blocks: of a sequence; on_progress hears the share recorded."""
        self._model = model
        self._largest = max(sizes)
        recorder, started_s = recorder or CudaRecorder(), time.monotonic()
        log.info("recording decodes of %d sizes, up to %d sequences", len(sizes), self._largest)
        assert isinstance(model.backend, FlashInferAttention), "see can_be_recorded"
        self._attention = model.backend
        self._attention.reserve(self._largest, max_blocks)
        vocab_size = len(model.embedding.weight)
        self._logits = torch.empty(self._largest, vocab_size, device=pool.device)  # of all sizes, which run in turn
        # The largest first: the others find room in the memory that it has taken.
        recorded = []
        for size in sorted(sizes, reverse=True):
            recorded.append((size, self._record(size, pool, recorder)))
            if on_progress is not None:
                on_progress(len(recorded) / len(sizes))
        self._recorded = recorded[::-1]
        log.info("recorded in %.1f s", time.monotonic() - started_s)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """See Model. pool: the one that was recorded with. The logits are overwritten by the next step."""
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

    def forward_idle(self) -> None:
        """See Model."""
        self._model.forward_idle()

    def _is_recorded(self, batch: Batch) -> bool:
        """Whether it is a decode, with logits of all sequences, of a size that was recorded."""
        is_decode = batch.num_decodes == batch.num_seqs == len(batch.logits_indices)
        return is_decode and batch.num_seqs <= self._largest and not self._attention.num_shared_blocks(batch)

    def _record(self, size: int, pool: Tensor, recorder: Recorder) -> RecordedStep:
        batch = _padded(NO_DECODES, size)
        numbers = torch.cat(batch.device_tensors()).to(pool.device)
        tensors = numbers.split_with_sizes([len(tensor) for tensor in batch.device_tensors()])
        batch = batch.with_tensors(tensors, is_replayed=True)
        self._model.backend.plan(batch)
        logits = self._logits[:size]
        replay = recorder.record(lambda: logits.copy_(self._model.compute(batch, pool)))
        return RecordedStep(numbers, tensors, replay)


def can_be_recorded(model: CausalLM) -> bool:
    """Whether decodes are made of nothing but kernels; the log says what is in the way."""
    if not isinstance(model.backend, FlashInferAttention):
        log.warning("decodes are not recorded as CUDA graphs: the attention that serves cannot be")
        return False
    sparse = [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MoE)]
    if not all(layer.stays_on_device for layer in sparse):
        log.warning("decodes are not recorded as CUDA graphs: the host must know how many tokens an expert gets")
        return False
    return True


def recorded_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of decodes that are recorded: few are padded by much, and all up to the greatest batch are served."""
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
    """As many decodes, with some of one token each that nobody sees, in the block that is nobody's."""
    more = size - batch.num_seqs

    def zeros_behind(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, more))

    return replace(
        batch,
        token_ids=zeros_behind(batch.token_ids),
        positions=zeros_behind(batch.positions),
        slot_mapping=zeros_behind(batch.slot_mapping),
        query_starts=torch.arange(size + 1),
        context_lens=F.pad(batch.context_lens, (0, more), value=1),
        block_tables=F.pad(batch.block_tables, (0, 0, 0, more), value=NULL_BLOCK),
        logits_indices=torch.arange(size),
        query_lens_list=[1] * size,
        context_lens_list=batch.context_lens_list + [1] * more,
        num_decodes=size,
    )
