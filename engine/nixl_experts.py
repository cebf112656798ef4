"""Tokens to experts and back by `nixl_ep`: GPU kernels that write into each other's memory, over NVLink and RDMA.

A step with few tokens on every rank, as in decoding, goes this way: one kernel sends each token to the slots that it
chose, one brings the results back and adds them up. No rank has to know first how many rows will come, and nothing is
copied on the way. Steps with more tokens take the all-to-all of `expert_parallel`.

The library masks out a rank that does not answer and goes on without its results, which would be wrong tokens: so each
combine is followed by a look at the mask, and a masked rank breaks the group, like a lost connection.

Written after the library's source (nixl 1.5, low-latency mode) and not run: it asks for GPUs from compute capability
9.0 on, bf16, and one of the widths that its kernels are compiled for.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import EngineError, GroupBroken
from engine.expert_parallel import ExpertRows
from engine.group_view import GroupView
from engine.layers.experts import ROW_TILE

HIDDEN_SIZES = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)  # that kernels are compiled for
MIN_CAPABILITY = (9, 0)
MAX_TOKENS = 128  # of each rank in a step that goes this way; buffers are made for so many
TIMEOUT_MS = 10_000  # after which a rank that does not answer is masked


class Buffer(Protocol):
    """What is used of `nixl_ep.Buffer`."""

    def low_latency_dispatch(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int, **options: bool
    ) -> tuple[Tensor, Tensor, Any, Any, Any]:
        """Begins to send rows to slots."""
        ...

    def low_latency_combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Any
    ) -> tuple[Tensor, Any, Any]:
        """Brings results back, weighted and added up."""
        ...

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes 1 for each rank that is masked."""
        ...

    def destroy(self) -> None:
        """Gives everything back."""
        ...


def check_nixl(hidden: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raises EngineError that says all that is missing."""
    missing = []
    if device.type != "cuda":
        missing.append(f"a GPU, not {device.type}")
    elif torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        missing.append("compute capability 9.0")
    if dtype != torch.bfloat16:
        missing.append(f"bfloat16, not {str(dtype).removeprefix('torch.')}")
    if hidden not in HIDDEN_SIZES:
        missing.append(f"a hidden size of {', '.join(map(str, HIDDEN_SIZES))}, not {hidden}")
    if not missing:
        try:
            import nixl_ep  # type: ignore[import-untyped]  # noqa: F401
        except (ImportError, OSError) as error:
            missing.append(f"the package nixl_ep ({error})")
    if missing:
        raise EngineError(f"all2all_backend nixl_ep needs {'; '.join(missing)}. Take all_to_all")


class NixlLink:
    """Owns the buffers of one epoch's rank."""

    def __init__(self, buffer: Buffer, size: int, slots_per_rank: int) -> None:
        """size: number of ranks, each with so many slots."""
        self.buffer = buffer
        self.num_slots = slots_per_rank * size
        self.slots_per_rank = slots_per_rank
        self._size = size

    @classmethod
    def connect(cls, view: GroupView, store: Any, hidden: int, slots_per_rank: int) -> "NixlLink":
        """Connects to all other ranks of the epoch, which do the same. Raises GroupBroken if that fails.

        store: a key-value store of torch that all of them have.
        """
        import nixl_ep

        size = len(view.members)
        try:
            buffer = nixl_ep.Buffer(
                explicitly_destroy=True,
                rank=view.rank,
                low_latency_mode=True,
                tcp_store_group=store,
                timeout_ms=TIMEOUT_MS,
            )
            num_bytes = nixl_ep.Buffer.get_low_latency_buffer_size_hint(MAX_TOKENS, hidden, size, slots_per_rank * size)
            buffer.update_memory_buffers(size, slots_per_rank, num_bytes)
            buffer.connect_ranks([rank for rank in range(size) if rank != view.rank])
        except RuntimeError as error:
            raise GroupBroken(f"nixl_ep did not connect the ranks: {error}") from error
        return cls(buffer, size, slots_per_rank)

    def takes(self, num_tokens: Sequence[int], slots_per_rank: int) -> bool:
        """See DirectLink."""
        return max(num_tokens) <= MAX_TOKENS and slots_per_rank <= self.slots_per_rank

    def dispatch(
        self, x: Tensor, replicas: Tensor, slots_per_rank: int, on_rows: Callable[[int], None]
    ) -> "NixlDispatch":
        """See DirectLink."""
        places = replicas // slots_per_rank * self.slots_per_rank + replicas % slots_per_rank
        return NixlDispatch(self, x, places, on_rows)

    def check(self, device: torch.device) -> None:
        """Raises GroupBroken if a rank did not answer."""
        mask = torch.zeros(self._size, dtype=torch.int32, device=device)
        self.buffer.query_mask_buffer(mask)
        if masked := mask.nonzero().flatten().tolist():
            raise GroupBroken(f"ranks {masked} did not answer within {TIMEOUT_MS / 1000:g} s")

    def close(self) -> None:
        """Gives the buffers back."""
        self.buffer.destroy()


class NixlDispatch:
    """See Dispatch of `expert_parallel`."""

    def __init__(self, link: NixlLink, x: Tensor, places: Tensor, on_rows: Callable[[int], None]) -> None:
        """places: [num_tokens, num_chosen], each a rank's number times `link.slots_per_rank` plus a slot's."""
        self._link = link
        self._places = places.contiguous()  # int64, as the library takes them
        self._on_rows = on_rows
        self._sizes: list[int] = []
        self._received, self._counts, self._handle, _, self._wait = link.buffer.low_latency_dispatch(
            x.contiguous(), self._places, MAX_TOKENS, link.num_slots, use_fp8=False, return_recv_hook=True
        )

    def arrive(self) -> ExpertRows:
        """See Dispatch. Slots beyond those of the layer have no rows."""
        self._wait()
        counts = self._counts.tolist()
        self._on_rows(sum(counts))
        self._sizes = [-(-count // ROW_TILE) * ROW_TILE for count in counts]
        rows = torch.cat([rows[:size] for rows, size in zip(self._received, self._sizes, strict=True)])
        return ExpertRows(rows, self._sizes, self._places.new_empty(0))

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch. Raises GroupBroken."""
        results = torch.empty_like(self._received)
        for slot, part in enumerate(outputs.split_with_sizes(self._sizes)):
            results[slot, : len(part)] = part
        combined, _, _ = self._link.buffer.low_latency_combine(
            results, self._places, weights.float().contiguous(), self._handle
        )
        self._link.check(combined.device)
        return combined
