"""FlashInfer's wrappers for the layers whose attention has the same span."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baton.engine.attention.flashinfer_kernels import LAYOUT, FlashInferKernels
from baton.engine.attention.paged_sequences import PagedSequences
from baton.engine.attention.shared_prefix import SharedPrefixDecode
from baton.engine.attention.span import AttentionSpan
from baton.engine.execution.batch import Batch

LN2 = math.log(2)


@dataclass(frozen=True, slots=True)
class WrapperOptions:
    """Arguments of all wrappers of a model, and of all their plans."""

    workspace: Tensor
    backend: str
    has_tensor_cores: bool  # in decoding
    sizes: tuple[int, ...]  # query and KV heads per shard, their width, and tokens per block
    types: Mapping[str, Any]  # dtypes, factor on the scores and their soft cap


@dataclass(frozen=True, slots=True)
class BlockBuffers:
    """Memory that replayed decodes of a fixed number of sequences read their block tables from; int32."""

    blocks: Tensor  # with room for the largest batch
    block_starts: Tensor  # [num_seqs + 1]
    last_block_lens: Tensor  # [num_seqs]

    @classmethod
    def zeros(cls, blocks: Tensor, num_seqs: int) -> "BlockBuffers":
        """Return buffers that share `blocks`."""
        return cls(blocks, blocks.new_zeros(num_seqs + 1), blocks.new_zeros(num_seqs))


class SpanWrappers:
    """Owns the wrappers of one span and their plans. Decodes and prompt chunks have separate kernels."""

    def __init__(self, span: AttentionSpan, kernels: FlashInferKernels, options: WrapperOptions) -> None:
        self.span = span
        self._kernels = kernels
        self._options = options
        self._window = {} if span.size is None or span.is_chunked else {"window_left": span.size - 1}
        self._decode = self._decode_wrapper()
        self._prefill = kernels.prefill(options.workspace, LAYOUT, backend=options.backend)
        self._shared: SharedPrefixDecode | None = None  # only of the whole context
        if span.size is None:
            # With few queries, fa2 splits the KV over the multiprocessors, and fa3 does not.
            prefix = kernels.prefill(options.workspace, LAYOUT, backend="fa2")
            self._shared = SharedPrefixDecode(prefix, self._decode, kernels.merge)
        self._planned: Any = None  # wrapper for this step's decodes

    def plan(self, batch: Batch, paged: PagedSequences, num_shared: int) -> None:
        """Plan a step. paged: of this span.

        num_shared: first blocks that are read once for all decodes, 0 unless the span is the whole context.
        """
        num_decodes, options = batch.num_decodes, self._options
        if num_shared:
            assert self._shared is not None
            self._planned = self._shared
            self._shared.plan(batch, num_shared, options.sizes[-1], options.sizes, options.types)
        elif num_decodes:
            self._plan_decodes(self._decode, paged.part(0, num_decodes))
        if num_decodes < batch.num_seqs:
            chunks = paged.part(num_decodes, paged.num_seqs)
            # Causality is aligned to the end: a chunk attends to everything before it, up to the span.
            self._prefill.plan(
                chunks.query_starts, *chunks.tables, *options.sizes, causal=True, **self._window, **options.types
            )

    def replayed(self, buffers: BlockBuffers) -> Any:
        """Return a wrapper that writes each plan's metadata to `buffers`."""
        return self._decode_wrapper(
            use_cuda_graph=True,
            paged_kv_indptr_buffer=buffers.block_starts,
            paged_kv_indices_buffer=buffers.blocks,
            paged_kv_last_page_len_buffer=buffers.last_block_lens,
        )

    def plan_replayed(self, wrapper: Any, paged: PagedSequences) -> None:
        """Plan a step that consists of decodes only, with a wrapper of `replayed`."""
        self._plan_decodes(wrapper, paged)

    def run(
        self, q: Tensor, cache: tuple[Tensor, ...], num_decodes: int, scaled: Mapping[str, float], into: Tensor,
        sinks: Tensor | None,
    ) -> None:  # fmt: skip
        """Write the attention of q [num_tokens, num_heads, head_dim] to `into`; scaled: scales of FP8 KV, if any."""
        for wrapper, first, end in ((self._planned, 0, num_decodes), (self._prefill, num_decodes, len(q))):
            if first < end:
                _run(wrapper, q[first:end], cache, scaled, into[first:end], sinks)

    def _plan_decodes(self, wrapper: Any, paged: PagedSequences) -> None:
        self._planned = wrapper
        wrapper.plan(*paged.tables, *self._options.sizes, **self._window, **self._options.types)

    def _decode_wrapper(self, **replayed: Any) -> Any:
        options = self._options
        return self._kernels.decode(
            options.workspace, LAYOUT, use_tensor_cores=options.has_tensor_cores, backend=options.backend, **replayed
        )


def _run(
    wrapper: Any, q: Tensor, cache: tuple[Tensor, ...], scaled: Mapping[str, float], into: Tensor, sinks: Tensor | None
) -> None:
    """Run a wrapper and write the result to `into`, without a copy if `into` is contiguous, as the kernels require."""
    if sinks is not None:
        result, log_sums = wrapper.run(q, cache, return_lse=True, **scaled)  # logarithms to base 2
        # The sink adds to the sum of weights alone: its share of the whole sum is lost to the values.
        into.copy_(result * torch.sigmoid(log_sums * LN2 - sinks).unsqueeze(2))
    elif into.is_contiguous():
        wrapper.run(q, cache, out=into, **scaled)
    else:
        into.copy_(wrapper.run(q, cache, **scaled))
