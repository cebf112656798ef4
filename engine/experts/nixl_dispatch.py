"""Expert dispatch by `nixl_ep`: GPU kernels that write into each other's memory over NVLink and RDMA.

Steps with few tokens on every rank, such as decodes, use it: one kernel sends each token to its experts' slots, one
returns the outputs and adds them up. No rank needs to know the row counts first, and nothing is copied in between.
Steps with more tokens use the all-to-all of `dispatch`.

The library masks a rank that does not respond and continues without its outputs, which would produce wrong tokens.
Each combine is therefore followed by a check of the mask, and a masked rank breaks the group like a lost connection.

Written from the library's source (nixl 1.5, low-latency mode) and never run: it needs GPUs of compute capability 9.0 or
higher, bf16, and one of the hidden sizes that its kernels are compiled for. It uses the thread's current device, so
each call is made with the group's device as the current one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from baton.engine.errors import EngineError, GroupBroken
from baton.engine.experts.dispatch import LayerSlots
from baton.engine.experts.permutation import ExpertRows
from baton.engine.layers.experts import ROW_TILE
from baton.engine.parallel.rank_group import RankGroup
from baton.extras import NIXL

HIDDEN_SIZES = (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)  # the kernels are compiled for these
MAX_CHOSEN = 11  # experts per token that the kernels are compiled for
MIN_CAPABILITY = (9, 0)
WHOLE_NODE = 8  # buffers are for fewer ranks than this, or for a multiple of it, not all of which need exist
MAX_SLOTS_OF_A_PROCESSOR = 14  # the kernels' bound on all ranks' slots, per multiprocessor of this GPU
MAX_TOKENS = 128  # per rank in a step that uses nixl_ep; buffers are sized for it
TIMEOUT_MS = 10_000  # after which a rank that does not respond is masked


class Buffer(Protocol):
    """Part of `nixl_ep.Buffer` that is used here."""

    def low_latency_dispatch(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int, **options: bool
    ) -> tuple[Tensor, Tensor, Any, Any, Any]:
        """Start to send rows to slots."""
        ...

    def low_latency_combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Any
    ) -> tuple[Tensor, Any, Any]:
        """Return the outputs, weighted and summed."""
        ...

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        """Write 1 for each masked rank."""
        ...

    def destroy(self) -> None:
        """Free all buffers and connections."""
        ...


def check_nixl(hidden: int, num_chosen: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise EngineError listing every requirement of nixl_ep that is not met. num_chosen: experts per token."""
    missing = []
    if device.type != "cuda":
        missing.append(f"a GPU, not {device.type}")
    elif torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        missing.append("compute capability 9.0")
    if dtype != torch.bfloat16:
        missing.append(f"bfloat16, not {str(dtype).removeprefix('torch.')}")
    if hidden not in HIDDEN_SIZES:
        missing.append(f"a hidden size of {', '.join(map(str, HIDDEN_SIZES))}, not {hidden}")
    if num_chosen > MAX_CHOSEN:
        missing.append(f"at most {MAX_CHOSEN} experts per token, not {num_chosen}")
    if not missing:
        try:
            import nixl_ep  # type: ignore[import-untyped]  # noqa: F401
        except (ImportError, OSError) as error:
            missing.append(f"the package nixl_ep ({NIXL.command}: {error})")
    if missing:
        raise EngineError(f"all2all_backend nixl_ep needs {'; '.join(missing)}. Use all_to_all")


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the thread's current GPU within a `with` block; no effect if it is not a GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def num_buffer_ranks(num_ranks: int) -> int:
    """Return the number of ranks that buffers are sized for."""
    return num_ranks if num_ranks < WHOLE_NODE else -(-num_ranks // WHOLE_NODE) * WHOLE_NODE


def _make_buffer(ranks: RankGroup, device: torch.device, hidden: int, slots_per_rank: int) -> Any:
    """Create an unconnected buffer. Raises EngineError."""
    import nixl_ep

    most = MAX_SLOTS_OF_A_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    if slots_per_rank * ranks.size > most:
        raise EngineError(
            f"all2all_backend nixl_ep takes at most {most} slots of all ranks on this GPU, not "
            f"{slots_per_rank * ranks.size}: use fewer redundant experts, or all_to_all"
        )
    places = num_buffer_ranks(ranks.size)
    try:
        buffer = nixl_ep.Buffer(
            explicitly_destroy=True,
            rank=ranks.view.rank,
            low_latency_mode=True,
            tcp_store_group=ranks.store,
            timeout_ms=TIMEOUT_MS,
        )
        num_bytes = buffer.get_low_latency_buffer_size_hint(MAX_TOKENS, hidden, places, slots_per_rank * places)
        buffer.update_memory_buffers(places, slots_per_rank, num_bytes)
    except RuntimeError as error:
        raise EngineError(f"nixl_ep failed to create its buffers: {error}. Use all2all_backend all_to_all") from error
    return buffer


class NixlLink:
    """Buffers of one rank in one epoch."""

    def __init__(self, buffer: Buffer, size: int, slots_per_rank: int, device: torch.device) -> None:
        """Wrap a connected buffer for `size` ranks with `slots_per_rank` slots each."""
        self.buffer = buffer
        self.num_slots = slots_per_rank * size
        self.slots_per_rank = slots_per_rank
        self._size = size
        self._device = device

    @classmethod
    def connect(cls, ranks: RankGroup, device: torch.device, hidden: int, slots_per_rank: int) -> "NixlLink":
        """Connect to all other ranks of the epoch, which must do the same.

        Raises EngineError if the buffers cannot be created, GroupBroken if a rank cannot be reached.
        """
        with on_device(device):
            buffer = _make_buffer(ranks, device, hidden, slots_per_rank)
            link = cls(buffer, ranks.size, slots_per_rank, device)
            try:
                ranks.barrier()  # detects lost ranks first: connect_ranks waits without checking the epoch
                buffer.connect_ranks([rank for rank in range(ranks.size) if rank != ranks.view.rank])
            except (RuntimeError, GroupBroken) as error:
                link.close()
                raise GroupBroken(f"nixl_ep did not connect the ranks: {error}") from error
        return link

    def accepts(self, num_tokens: Sequence[int], slots_per_rank: int) -> bool:
        """Return whether a step with `num_tokens` tokens per rank fits into the buffers."""
        return max(num_tokens) <= MAX_TOKENS and slots_per_rank <= self.slots_per_rank

    def dispatch(
        self, x: Tensor, replicas: Tensor, slots: LayerSlots, on_rows: Callable[[int], None]
    ) -> "NixlDispatch":
        """Start to send tokens x [num_tokens, hidden] to replicas [num_tokens, num_chosen]."""
        places = replicas // slots.per_rank * self.slots_per_rank + replicas % slots.per_rank
        return NixlDispatch(self, x, places, slots.here, on_rows)

    def on_device(self) -> AbstractContextManager[object]:
        """Make the group's device the thread's current one within a `with` block."""
        return on_device(self._device)

    def check(self) -> None:
        """Raise GroupBroken if a rank did not respond in time."""
        mask = torch.zeros(num_buffer_ranks(self._size), dtype=torch.int32, device=self._device)
        self.buffer.query_mask_buffer(mask)
        if masked := mask[: self._size].nonzero().flatten().tolist():
            raise GroupBroken(f"ranks {masked} did not respond within {TIMEOUT_MS / 1000:g} s")

    def close(self) -> None:
        """Free the buffers once no kernel is running."""
        with self.on_device():
            self.buffer.destroy()


class NixlDispatch:
    """Dispatch through `nixl_ep`."""

    def __init__(
        self, link: NixlLink, x: Tensor, places: Tensor, num_slots: int, on_rows: Callable[[int], None]
    ) -> None:
        """Start to send tokens x [num_tokens, hidden].

        places: [num_tokens, num_chosen], each rank * `link.slots_per_rank` + slot; num_slots: this layer's slots on
        this rank, of which the link may have more.
        """
        self._link = link
        self._places = places.contiguous()  # int64, as the library requires
        self._num_slots = num_slots
        self._on_rows = on_rows
        self._sizes: list[int] = []
        with link.on_device():
            self._received, self._counts, self._handle, _, self._wait = link.buffer.low_latency_dispatch(
                x.contiguous(), self._places, MAX_TOKENS, link.num_slots, use_fp8=False, return_recv_hook=True
            )

    def receive(self) -> ExpertRows:
        """Wait for the rows of this rank's experts and return them."""
        with self._link.on_device():
            self._wait()
        counts = self._counts[: self._num_slots].tolist()
        self._on_rows(sum(counts))
        self._sizes = [-(-count // ROW_TILE) * ROW_TILE for count in counts]
        parts = [rows[:size] for rows, size in zip(self._received, self._sizes, strict=False)]
        rows = torch.cat(parts) if parts else self._received[0, :0]
        return ExpertRows(rows, self._sizes, self._places.new_empty(0))

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of this rank's tokens, [num_tokens, hidden]. Raises GroupBroken."""
        results = torch.empty_like(self._received)
        for slot, part in enumerate(outputs.split_with_sizes(self._sizes) if self._sizes else ()):
            results[slot, : len(part)] = part
        with self._link.on_device():
            combined, _, _ = self._link.buffer.low_latency_combine(
                results, self._places, weights.float().contiguous(), self._handle
            )
            self._link.check()
        return combined
