"""Attention by FlashInfer's kernels (arXiv 2501.01005), on a GPU."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention.heads import AttentionHeads
from engine.attention.paged_sequences import PagedSequences
from engine.batch import Batch

WORKSPACE_BYTES = 256 << 20  # for partial results of long contexts; one for all wrappers, which run in turn
LAYOUT = "HND"  # of a block: heads, tokens, elements
HEAD_DIMS = (64, 128, 256)  # that the kernels are made for
LATENT_DIMS = (512, 64)  # likewise, with MLA: latent, rotary key
PLAIN_GROUPS = (1, 2, 3)  # query heads a KV head that are decoded without tensor cores; with more these win


@dataclass(frozen=True, slots=True)
class FlashInferKernels:
    """What of the library is used: its wrappers' classes, and functions."""

    decode: Any
    prefill: Any
    latent: Any
    latent_metadata: Any
    append: Any
    append_latent: Any

    @classmethod
    def load(cls) -> "FlashInferKernels":
        """Imports the library. Raises ImportError."""
        import flashinfer
        from flashinfer.mla import MLAPlanMetadata

        return cls(
            decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
            prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
            latent=flashinfer.mla.BatchMLAPagedAttentionWrapper,
            latent_metadata=MLAPlanMetadata,
            append=flashinfer.append_paged_kv_cache,
            append_latent=flashinfer.page.append_paged_mla_kv_cache,
        )


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Where a step's new KV goes: all of it on the device, int32."""

    sequences: Tensor  # [num_tokens] which sequence each is of
    positions: Tensor  # [num_tokens] its place there
    blocks: Tensor  # as in PagedSequences, of the whole batch
    block_starts: Tensor
    last_block_lens: Tensor

    @classmethod
    def of(cls, batch: Batch, paged: PagedSequences) -> "NewTokens":
        """Those of a batch whose sequences are all in `paged`."""
        device = batch.positions.device
        counts = torch.tensor(batch.query_lens_list)
        sequences = torch.arange(batch.num_seqs, dtype=torch.int32).repeat_interleave(counts)
        return cls(
            sequences=sequences.to(device, non_blocking=True),
            positions=batch.positions.to(torch.int32),
            blocks=paged.blocks,
            block_starts=paged.block_starts.to(device, non_blocking=True),
            last_block_lens=paged.last_block_lens.to(device, non_blocking=True),
        )


class FlashInferAttention:
    """Plans a step on the host, then appends and attends layer by layer, reading blocks where they lie.

    Decodes and chunks of prompts have a kernel each. A block's parts are attended to one after another: the heads of
    one lie at even distances, those of several do not.
    """

    def __init__(
        self,
        scale: float,
        block_size: int,
        heads: AttentionHeads,
        device: torch.device,
        num_parts: int = 1,
        kernels: FlashInferKernels | None = None,
    ) -> None:
        """scale: factor on the scores; num_parts: of a block, which divides the KV heads."""
        self.heads = heads
        self._scale = scale
        self._block_size = block_size
        self._num_parts = num_parts
        self._kernels = kernels = kernels or FlashInferKernels.load()
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        if heads.value_width < heads.key_width:
            self._latent = kernels.latent(workspace)
        else:
            group = heads.num_heads // heads.num_kv_heads
            self._decode = kernels.decode(workspace, LAYOUT, use_tensor_cores=group not in PLAIN_GROUPS)
            self._prefill = kernels.prefill(workspace, LAYOUT)
        self._new: NewTokens | None = None

    def plan(self, batch: Batch) -> None:
        """Divides the step's work among the GPU's processors, once for all layers."""
        paged = PagedSequences.of(batch, self._block_size)
        self._new = NewTokens.of(batch, paged)
        if self.heads.value_width < self.heads.key_width:
            self._plan_latent(paged)
            return
        num_decodes = batch.num_decodes
        if num_decodes:
            decodes = paged.part(0, num_decodes)
            self._decode.plan(*_blocks(decodes), *self._sizes(), **self._types())
        if num_decodes < batch.num_seqs:
            chunks = paged.part(num_decodes, batch.num_seqs)
            # Causality is aligned to the end: a chunk sees what came before it.
            self._prefill.plan(chunks.query_starts, *_blocks(chunks), *self._sizes(), causal=True, **self._types())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """See AttentionBackend."""
        assert layer_cache.shape[1] == self._num_parts
        result = torch.empty_like(q)
        parts = zip(*(rows.chunk(self._num_parts, dim=1) for rows in (q, k, v, result)), strict=True)
        for part, (queries, keys, values, into) in enumerate(parts):
            cache = layer_cache[:, part].unbind(1)  # keys and values, [num_blocks, heads, block_size, head_dim] each
            self._append(keys, values, cache)
            if batch.num_decodes:
                into[: batch.num_decodes] = self._decode.run(queries[: batch.num_decodes], cache)
            if batch.num_decodes < batch.num_seqs:
                into[batch.num_decodes :] = self._prefill.run(queries[batch.num_decodes :], cache)
        return result

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """See AttentionBackend."""
        assert self._new is not None, "plan() comes first"
        rank, new = self.heads.value_width, self._new
        cache = layer_cache[..., :rank], layer_cache[..., rank:]
        self._kernels.append_latent(
            latent[:, :rank], latent[:, rank:], new.sequences, new.positions, *cache,
            new.blocks, new.block_starts, new.last_block_lens,
        )  # fmt: skip
        result: Tensor = self._latent.run(query=(q[..., :rank], q[..., rank:]), kv_cache=cache)
        return result

    def _append(self, keys: Tensor, values: Tensor, cache: tuple[Tensor, ...]) -> None:
        assert self._new is not None, "plan() comes first"
        new = self._new
        self._kernels.append(
            keys, values, new.sequences, new.positions, cache,
            new.blocks, new.block_starts, new.last_block_lens, kv_layout=LAYOUT,
        )  # fmt: skip

    def _sizes(self) -> tuple[int, ...]:
        """Query and KV heads of a part, their width, and tokens a block."""
        heads = self.heads
        return (
            heads.num_heads // self._num_parts,
            heads.num_kv_heads // self._num_parts,
            heads.key_width,
            self._block_size,
        )

    def _types(self) -> dict[str, Any]:
        return {"q_data_type": self.heads.dtype, "kv_data_type": self.heads.dtype, "sm_scale": self._scale}

    def _plan_latent(self, paged: PagedSequences) -> None:
        heads = self.heads
        self._latent.plan(
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


def _blocks(paged: PagedSequences) -> tuple[Tensor, Tensor, Tensor]:
    return paged.block_starts, paged.blocks, paged.last_block_lens


def is_made_for(heads: AttentionHeads) -> bool:
    """Whether the library has kernels for these heads."""
    if heads.is_quantised or heads.dtype not in (torch.bfloat16, torch.float16):
        return False
    if heads.value_width < heads.key_width:
        return (heads.value_width, heads.key_width - heads.value_width) == LATENT_DIMS
    return heads.key_width in HEAD_DIMS
