"""Emulation of FlashInfer's wrappers in torch: enough to find a wrong plan without a GPU.

It follows the documentation and the checks of flashinfer 0.7.2: metadata are contiguous int32, starts begin with 0,
page counts follow from lengths, keys and values have the same strides, the last dimension is contiguous, causality is
aligned to the end, decode takes one query per sequence.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baton.engine.attention.flashinfer_kernels import FlashInferKernels


def check_metadata(*tensors: Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.dim() == 1
        assert tensor.is_contiguous()


@dataclass(frozen=True)
class Pages:
    """Location of each sequence's KV."""

    starts: Tensor
    pages: Tensor
    page_size: int
    lens: list[int]

    @classmethod
    def of(cls, starts: Tensor, pages: Tensor, last_lens: Tensor, page_size: int) -> "Pages":
        check_metadata(starts, pages, last_lens)
        assert starts[0] == 0
        assert starts[-1] <= len(pages)  # memory for replays has room for more
        assert len(starts) == len(last_lens) + 1
        assert ((last_lens >= 1) & (last_lens <= page_size)).all()
        counts = starts.diff()
        assert (counts >= 1).all()
        return cls(starts, pages, page_size, ((counts - 1) * page_size + last_lens).tolist())

    def rows(self, cache: Tensor, sequence: int) -> Tensor:
        """cache: [num_pages, heads, page_size, width]. Returns [length, heads, width]."""
        pages = self.pages[self.starts[sequence] : self.starts[sequence + 1]].long()
        return cache[pages].transpose(1, 2).flatten(0, 1)[: self.lens[sequence]]


def attended(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    is_causal: bool,
    window_left: int = -1,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """q: [num_new, num_heads, width]; keys, values: [length, num_kv_heads, width].

    window_left: tokens before its own that a token attends to, -1: all of them; soft_cap: bound on the scores.
    Returns the result, of q's shape, and the base-2 logarithm of each head's sum of scores: [num_new, num_heads].
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = (rows.repeat_interleave(group, dim=1).float() for rows in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    behind = torch.arange(len(keys) - len(q), len(keys))[:, None] - torch.arange(len(keys))
    if is_causal:
        scores = scores.masked_fill(behind < 0, -torch.inf)
    if window_left >= 0:
        scores = scores.masked_fill(behind > window_left, -torch.inf)
    sums = scores.logsumexp(-1).T / math.log(2)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype), sums


def merge(first: Tensor, first_sums: Tensor, second: Tensor, second_sums: Tensor) -> tuple[Tensor, Tensor]:
    """merge_state."""
    assert first.shape == second.shape
    assert first_sums.shape == second_sums.shape == first.shape[:2]
    assert first_sums.dtype == second_sums.dtype == torch.float32
    assert first.is_contiguous()
    assert second.is_contiguous()
    sums = torch.logaddexp2(first_sums, second_sums)
    shares = [(part - sums).exp2().unsqueeze(2) for part in (first_sums, second_sums)]
    return (first.float() * shares[0] + second.float() * shares[1]).to(first.dtype), sums


def check_cache(cache: tuple[Tensor, Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    keys, values = cache
    assert keys.stride() == values.stride()
    assert keys.stride(-1) == 1
    assert keys.dtype == values.dtype == dtype
    assert keys.shape[1:] == values.shape[1:] == shape


class PagedWrapper:
    """Both paged wrappers: a plan for heads, then runs of layers."""

    def __init__(
        self, workspace: Tensor, kv_layout: str = "NHD", use_tensor_cores: bool = False, backend: str = "auto"
    ) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "HND"
        self.backend = backend
        self.planned: dict[str, Any] | None = None

    def _plan(self, query_starts: Tensor, pages: Pages, heads: tuple[int, int, int], is_causal: bool, kw: Any) -> None:
        types = kw["q_data_type"], kw["kv_data_type"]
        assert types[0] == types[1] or (types[1] == torch.float8_e4m3fn and self.backend == "fa2")
        self.planned = {"starts": query_starts, "pages": pages, "heads": heads, "is_causal": is_causal, **kw}

    def run(
        self,
        q: Tensor,
        cache: tuple[Tensor, Tensor],
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Scores are scaled by `k_scale` in the kernel, results of the queries' dtype by `v_scale` after it."""
        assert self.planned is not None
        assert all(type(scale) in (float, type(None)) for scale in (k_scale, v_scale))  # it waits for tensors
        plan, pages = self.planned, self.planned["pages"]
        num_heads, num_kv_heads, width = plan["heads"]
        assert q.dtype == plan["q_data_type"]
        assert q.shape == (plan["starts"][-1], num_heads, width)
        assert q.stride(-1) == 1
        check_cache(cache, plan["kv_data_type"], (num_kv_heads, pages.page_size, width))
        scale = plan["sm_scale"] * (k_scale or 1.0)
        options = plan.get("window_left", -1), plan.get("logits_soft_cap")
        parts = [
            attended(new, *(pages.rows(part, seq) for part in cache), scale, plan["is_causal"], *options)
            for seq, new in enumerate(q.split(plan["starts"].diff().tolist()))
        ]
        result, sums = (torch.cat(part) for part in zip(*parts, strict=True))
        if v_scale not in (None, 1.0):
            result.mul_(v_scale)
        if out is not None:
            assert (out.shape, out.dtype, out.is_contiguous()) == (result.shape, result.dtype, True)
            result = out.copy_(result)
        return (result, sums) if return_lse else result


class Decode(PagedWrapper):
    """BatchDecodeWithPagedKVCacheWrapper: with `use_cuda_graph` a plan is stored in the given memory."""

    def __init__(
        self,
        workspace: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(workspace, kv_layout, use_tensor_cores, backend)
        given = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self.memory = tuple(part for part in given if part is not None)
        assert len(self.memory) == (3 if use_cuda_graph else 0)
        check_metadata(*self.memory)

    def run(
        self,
        q: Tensor,
        cache: tuple[Tensor, Tensor],
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.memory:
            assert self.planned is not None
            self.planned["pages"] = Pages.of(*self.memory, self.planned["pages"].page_size)
        return super().run(q, cache, k_scale, v_scale, return_lse, out)

    def plan(self, starts: Tensor, pages: Tensor, last_lens: Tensor, num_heads: int, num_kv_heads: int, width: int,
             page_size: int, **kw: Any) -> None:  # fmt: skip
        assert not starts.is_cuda
        queries = torch.arange(len(last_lens) + 1, dtype=torch.int32)
        paged = Pages.of(starts, pages, last_lens, page_size)
        if self.memory:
            assert len(last_lens) == len(self.memory[2]), "the batch size of a replay is fixed"
            for part, values in zip(self.memory, (starts, pages, last_lens), strict=True):
                part[: len(values)] = values
        self._plan(queries, paged, (num_heads, num_kv_heads, width), is_causal=False, kw=kw)


class Prefill(PagedWrapper):
    """BatchPrefillWithPagedKVCacheWrapper."""

    def plan(self, query_starts: Tensor, starts: Tensor, pages: Tensor, last_lens: Tensor, num_heads: int,
             num_kv_heads: int, width: int, page_size: int, *, causal: bool, **kw: Any) -> None:  # fmt: skip
        check_metadata(query_starts)
        assert query_starts[0] == 0
        paged = Pages.of(starts, pages, last_lens, page_size)
        assert (query_starts.diff() <= torch.tensor(paged.lens)).all()
        self._plan(query_starts, paged, (num_heads, num_kv_heads, width), is_causal=causal, kw=kw)


@dataclass(frozen=True)
class LatentMetadata:
    """MLAPlanMetadata."""

    query_starts: Tensor
    starts: Tensor
    pages: Tensor
    lens: Tensor

    @classmethod
    def csr(cls, query_starts: Tensor, starts: Tensor, pages: Tensor, lens: Tensor) -> "LatentMetadata":
        check_metadata(query_starts, starts, pages, lens)
        return cls(query_starts, starts, pages, lens)


class Latent:
    """BatchMLAPagedAttentionWrapper; with `use_cuda_graph` as Decode."""

    def __init__(
        self,
        workspace: Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor | None = None,
        kv_indptr: Tensor | None = None,
        kv_indices: Tensor | None = None,
        kv_len_arr: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert workspace.dtype == torch.uint8
        given = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        self.memory = tuple(part for part in given if part is not None)
        assert len(self.memory) == (4 if use_cuda_graph else 0)
        assert backend in ("fa2", "fa3") or not use_cuda_graph, "replays need one backend"
        check_metadata(*self.memory)

    def plan(self, *, metadata: LatentMetadata, page_size: int, causal: bool, query_layout: str, kv_cache_layout: str,
             **kw: Any) -> None:  # fmt: skip
        assert (query_layout, kv_cache_layout) == ("split", "split")
        assert causal
        if self.memory:
            given = (metadata.query_starts, metadata.starts, metadata.pages, metadata.lens)
            assert len(metadata.lens) == len(self.memory[3]), "the batch size of a replay is fixed"
            for part, values in zip(self.memory, given, strict=True):
                part[: len(values)] = values
            metadata = LatentMetadata(*self.memory)
        self.metadata, self.kw, self.page_size = metadata, kw, page_size

    def run(self, *, query: tuple[Tensor, Tensor], kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        widths = (self.kw["head_dim_ckv"], self.kw["head_dim_kpe"])
        for rows in (*query, *kv_cache):
            assert rows.dim() == 3
            assert rows.stride(-1) == 1
            assert rows.dtype == self.kw["q_data_type"]
        assert tuple(rows.shape[-1] for rows in query) == tuple(rows.shape[-1] for rows in kv_cache) == widths
        assert query[0].shape[1] == self.kw["num_heads"]
        metadata = self.metadata
        assert torch.equal(metadata.starts.diff(), -(-metadata.lens // self.page_size))
        last = (metadata.lens - 1) % self.page_size + 1
        pages = Pages.of(metadata.starts, metadata.pages, last.to(torch.int32), self.page_size)
        whole, q = torch.cat(kv_cache, dim=-1).unsqueeze(1), torch.cat(query, dim=-1)
        results = []
        for seq, new in enumerate(q.split(metadata.query_starts.diff().tolist())):
            keys = pages.rows(whole, seq)
            results.append(attended(new, keys, keys[..., : widths[0]], self.kw["sm_scale"], is_causal=True)[0])
        return torch.cat(results)


def append(keys: Tensor, values: Tensor, sequences: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor],
           pages: Tensor, starts: Tensor, last_lens: Tensor, kv_layout: str) -> None:  # fmt: skip
    """append_paged_kv_cache."""
    assert kv_layout == "HND"
    check_metadata(sequences, positions)
    assert cache[0].stride() == cache[1].stride()
    page_size = cache[0].shape[2]
    Pages.of(starts, pages, last_lens, page_size)
    page = pages[starts[sequences.long()] + positions // page_size].long()
    for rows, part in ((keys, cache[0]), (values, cache[1])):
        assert rows.dtype == part.dtype  # it copies bytes without a check
        assert rows.stride(-1) == 1
        assert rows.shape == (len(sequences), *part.shape[1:4:2])
        part[page, :, (positions % page_size).long()] = rows


def append_latent(latent: Tensor, rope: Tensor, sequences: Tensor, positions: Tensor, latents: Tensor, ropes: Tensor,
                  pages: Tensor, starts: Tensor, last_lens: Tensor) -> None:  # fmt: skip
    """append_paged_mla_kv_cache."""
    check_metadata(sequences, positions)
    page_size = latents.shape[1]
    Pages.of(starts, pages, last_lens, page_size)
    page = pages[starts[sequences.long()] + positions // page_size].long()
    latents[page, (positions % page_size).long()] = latent
    ropes[page, (positions % page_size).long()] = rope


EMULATION = FlashInferKernels(
    decode=Decode,
    prefill=Prefill,
    latent=Latent,
    latent_metadata=LatentMetadata,
    append=append,
    append_latent=append_latent,
    merge=merge,
)
