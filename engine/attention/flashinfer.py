"""FlashInfer attention backend (arXiv 2501.01005), on a GPU."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.attention.flashinfer_kernels import LAYOUT, FlashInferKernels
from baton.engine.attention.flashinfer_span import BlockBuffers, SpanWrappers, WrapperOptions
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.paged_sequences import NewTokens, PagedSequences
from baton.engine.attention.shared_prefix import LEAST_SAVED_BYTES, num_shared_blocks
from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.execution.batch import Batch
from baton.engine.execution.device import pinned
from baton.engine.kv.scales import UNSCALED, KVScales

WORKSPACE_BYTES = 256 << 20  # for partial results of long contexts; shared by all wrappers, which run one by one
HEAD_DIMS = (64, 128, 256)  # supported by the kernels
LATENT_DIMS = (512, 64)  # supported with MLA: latent, rotary key
LATENT_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)  # supported query heads: others would split a token over two tiles
LATENT_ROWS = 1 << 20  # maximum of tokens times heads in a plan
HOPPER = 9  # compute capability
PLAIN_GROUPS = (1, 2, 3)  # query heads per KV head up to which decoding without tensor cores is faster


@dataclass(frozen=True, slots=True)
class ReplayedDecode:
    """Wrappers and buffers for replayed decodes of a fixed number of sequences, always in the same memory."""

    wrappers: tuple[Any, ...]  # by span; with MLA only one
    new: NewTokens


class FlashInferAttention:
    """Plans a step on the host, then appends KV and attends layer by layer, reading blocks in place.

    Layers with different spans have separate plans; decodes with a long common prefix read it once in layers that
    attend to the whole context. The shards of a block are processed one after another: heads have a constant stride
    only within a shard.
    """

    def __init__(
        self,
        scale: float,
        block_size: int,
        heads: AttentionHeads,
        device: torch.device,
        num_parts: int = 1,
        kernels: FlashInferKernels | None = None,
        least_saved_bytes: int = LEAST_SAVED_BYTES,
        soft_cap: float | None = None,
        spans: Collection[AttentionSpan] = (),
    ) -> None:
        """scale: factor on the scores; num_parts: shards per block, which divide the KV heads.

        least_saved_bytes: smallest saving per layer for which decodes read a common prefix once; soft_cap: bound on the
        scores, by cap * tanh(score / cap); spans: of the layers; none: all attend to the whole context.
        """
        self.heads = heads
        self._least_saved_bytes = least_saved_bytes
        self._scale = scale
        self._block_size = block_size
        self._num_parts = num_parts
        self._kernels = kernels = kernels or FlashInferKernels.load()
        self._device = device
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._is_latent = heads.value_width < heads.key_width
        self._is_fp8 = heads.cached_dtype == fp8_rows.DTYPE
        self._has_whole = FULL in spans or not spans  # whether a layer attends to the whole context
        self._spans: dict[AttentionSpan, SpanWrappers] = {}
        if self._is_latent:
            self._latent = kernels.latent(self._workspace)
        else:
            options = WrapperOptions(
                self._workspace,
                backend="fa2" if self._is_fp8 else "auto",  # fa3 supports FP8 KV only with FP8 queries
                has_tensor_cores=heads.num_heads // heads.num_kv_heads not in PLAIN_GROUPS,
                sizes=self._sizes(),
                types=self._types() if soft_cap is None else {**self._types(), "logits_soft_cap": soft_cap},
            )
            self._spans = {span: SpanWrappers(span, kernels, options) for span in {FULL: None, **dict.fromkeys(spans)}}
        self._new: NewTokens | None = None
        self._copied: torch.cuda.Event | None = None  # set once the last plan has been copied to the device
        self._planned: Any = None  # with MLA: wrapper for this step
        self._replayed: dict[int, ReplayedDecode] = {}  # by number of sequences
        self._replayed_blocks: list[Tensor] = []  # by span, shared by all numbers of sequences, which run one by one

    def plan(self, batch: Batch) -> None:
        """Divide the step's work among the GPU's multiprocessors, once for all layers."""
        if self._copied is not None:
            self._copied.synchronize()  # the new plan overwrites the host buffer that the last one is copied from
        self._plan(batch, PagedSequences.of(batch, self._block_size))
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def _plan(self, batch: Batch, paged: PagedSequences) -> None:
        if batch.is_replayed:
            self._plan_replayed(batch, paged)
            return
        self._new = NewTokens.of(batch, paged)
        if self._is_latent:
            self._planned = self._latent
            self._plan_latent(paged)
            return
        num_shared = self.num_shared_blocks(batch)
        for span, wrappers in self._spans.items():
            wrappers.plan(batch, self._paged(batch, paged, span), num_shared if span == FULL else 0)

    def _paged(self, batch: Batch, whole: PagedSequences, span: AttentionSpan) -> PagedSequences:
        return whole if span == FULL else PagedSequences.of(batch, self._block_size, span=span)

    @property
    def most_tokens(self) -> int | None:
        """Maximum number of tokens in a step; None: unlimited."""
        return LATENT_ROWS // self.heads.num_heads if self._is_latent else None

    def num_shared_blocks(self, batch: Batch) -> int:
        """Return how many first blocks are read once for all decodes; 0 if that does not pay."""
        if self._is_latent or not self._has_whole:
            return 0
        heads = self.heads
        block_bytes = 2 * heads.num_kv_heads * self._block_size * heads.key_width * heads.cached_dtype.itemsize
        return num_shared_blocks(batch, self._block_size, block_bytes, self._least_saved_bytes)

    def reserve(self, max_num_seqs: int, max_blocks: int) -> None:
        """Allocate memory for replayed decodes of up to `max_num_seqs` sequences of up to `max_blocks` blocks each."""
        size, count = max_num_seqs * max_blocks, len(self._spans) or 1
        self._replayed_blocks = list(torch.zeros(count, size, dtype=torch.int32, device=self._device))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_cache: Tensor,
        batch: Batch,
        scales: KVScales = UNSCALED,
        kind: AttentionKind = PLAIN,
    ) -> Tensor:
        """Write the new KV and return the attention of one layer."""
        assert layer_cache.shape[1] == self._num_parts
        scaled = {}
        if self._is_fp8:
            k, v = fp8_rows.encode(k, scales.key), fp8_rows.encode(v, scales.value)
            scaled = {"k_scale": scales.key, "v_scale": scales.value}
        result, wrappers = torch.empty_like(q), self._spans[kind.span]
        sinks = None if kind.sinks is None else kind.sinks.chunk(self._num_parts)
        parts = zip(*(rows.chunk(self._num_parts, dim=1) for rows in (q, k, v, result)), strict=True)
        for part, (queries, keys, values, into) in enumerate(parts):
            cache = layer_cache[:, part].unbind(1)  # keys and values, [num_blocks, heads, block_size, head_dim] each
            if keys.shape[1]:
                self._append(keys, values, cache)
            wrappers.run(queries, cache, batch.num_decodes, scaled, into, None if sinks is None else sinks[part])
        return result

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Write the new latents and return the attention of one MLA layer."""
        assert self._new is not None, "plan() comes first"
        rank, new = self.heads.value_width, self._new
        cache = layer_cache[..., :rank], layer_cache[..., rank:]
        self._kernels.append_latent(
            latent[:, :rank], latent[:, rank:], new.sequences, new.positions, *cache,
            new.blocks, new.block_starts, new.last_block_lens,
        )  # fmt: skip
        result: Tensor = self._planned.run(query=(q[..., :rank], q[..., rank:]), kv_cache=cache)
        return result

    def _append(self, keys: Tensor, values: Tensor, cache: tuple[Tensor, ...]) -> None:
        assert self._new is not None, "plan() comes first"
        new = self._new
        self._kernels.append(
            keys, values, new.sequences, new.positions, cache,
            new.blocks, new.block_starts, new.last_block_lens, kv_layout=LAYOUT,
        )  # fmt: skip

    def _sizes(self) -> tuple[int, ...]:
        """Return query and KV heads per shard, their width, and tokens per block."""
        heads = self.heads
        return (
            heads.num_heads // self._num_parts,
            heads.num_kv_heads // self._num_parts,
            heads.key_width,
            self._block_size,
        )

    def _types(self) -> dict[str, Any]:
        heads = self.heads
        return {"q_data_type": heads.dtype, "kv_data_type": heads.cached_dtype, "sm_scale": self._scale}

    def _plan_replayed(self, batch: Batch, paged: PagedSequences) -> None:
        if batch.num_seqs not in self._replayed:
            self._replayed[batch.num_seqs] = self._make_replayed(batch.num_seqs)
        replayed = self._replayed[batch.num_seqs]
        self._new = replayed.new
        replayed.new.positions.copy_(batch.positions)
        if self._is_latent:
            self._planned = replayed.wrappers[0]
            replayed.new.last_block_lens.copy_(pinned(paged.last_block_lens, self._device), non_blocking=True)
            self._plan_latent(paged)
            return
        for (span, wrappers), wrapper in zip(self._spans.items(), replayed.wrappers, strict=True):
            wrappers.plan_replayed(wrapper, self._paged(batch, paged, span))

    def _make_replayed(self, num_seqs: int) -> ReplayedDecode:
        """Create wrappers that write each plan's metadata to fixed tensors; appending reads those of the whole context.

        The whole context is the first span.
        """
        buffers = [BlockBuffers.zeros(blocks, num_seqs) for blocks in self._replayed_blocks]
        queries = torch.arange(num_seqs + 1, dtype=torch.int32, device=self._device)
        new = NewTokens(
            sequences=queries[:-1],
            positions=torch.zeros(num_seqs, dtype=torch.int32, device=self._device),
            blocks=buffers[0].blocks,
            block_starts=buffers[0].block_starts,
            last_block_lens=buffers[0].last_block_lens,
        )
        if not self._is_latent:
            spans = zip(self._spans.values(), buffers, strict=True)
            return ReplayedDecode(tuple(wrappers.replayed(each) for wrappers, each in spans), new)
        latent = self._kernels.latent(
            self._workspace,
            use_cuda_graph=True,
            qo_indptr=queries.clone(),
            kv_indptr=new.block_starts,
            kv_indices=new.blocks,
            kv_len_arr=torch.zeros(num_seqs, dtype=torch.int32, device=self._device),
            backend=_latent_backend(self._device),
        )
        return ReplayedDecode((latent,), new)

    def _plan_latent(self, paged: PagedSequences) -> None:
        heads = self.heads
        self._planned.plan(
            metadata=self._kernels.latent_metadata.csr(
                paged.query_starts, paged.block_starts, paged.blocks, paged.context_lens
            ),
            num_heads=heads.num_heads,
            head_dim_ckv=heads.value_width,
            head_dim_kpe=heads.key_width - heads.value_width,
            page_size=self._block_size,
            causal=True,
            **self._types(),
            query_layout="split",
            kv_cache_layout="split",
        )


def _latent_backend(device: torch.device) -> str:
    """Choose the kernel for replays explicitly, since a wrapper with "auto" would plan in new memory each time."""
    return "fa3" if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER else "fa2"


def is_made_for(heads: AttentionHeads) -> bool:
    """Return whether the library has kernels for these heads."""
    if heads.is_quantised or heads.dtype not in (torch.bfloat16, torch.float16):
        return False
    if heads.value_width < heads.key_width:
        widths = (heads.value_width, heads.key_width - heads.value_width)
        return widths == LATENT_DIMS and heads.num_heads in LATENT_HEADS
    return heads.key_width in HEAD_DIMS
