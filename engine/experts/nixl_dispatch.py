"""Tokens to experts and back by `nixl_ep`: GPU kernels that write into each other's memory, over NVLink and RDMA.

A step with few tokens on every rank, as in decoding, goes this way: one kernel sends each token to the slots that it
chose, one brings the results back and adds them up. No rank has to know first how many rows will come, and nothing is
copied on the way. Steps with more tokens take the all-to-all of `expert_parallel`.

The library masks out a rank that does not answer and goes on without its results, which would be wrong tokens: so each
combine is followed by a look at the mask, and a masked rank breaks the group, like a lost connection.

Written after the library's source (nixl 1.5, low-latency mode) and not run: it asks for GPUs from compute capability
9.0 on, bf16, and one of the widths that its kernels are compiled for. It takes the device that is the thread's present
one, so each call to it is made with the group's.
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

HIDDEN_SIZES = (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)  # that kernels are compiled for
MAX_CHOSEN = 11  # experts of a token, likewise
MIN_CAPABILITY = (9, 0)
WHOLE_NODE = 8  # buffers are for fewer ranks, or for a multiple of so many, of which some need not be there
MAX_SLOTS_OF_A_PROCESSOR = 14  # of all ranks, for each multiprocessor of this GPU: the kernels' own bound
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


def check_nixl(hidden: int, num_chosen: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raises EngineError that says all that is missing. num_chosen: experts of a token."""
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
        missing.append(f"at most {MAX_CHOSEN} experts of a token, not {num_chosen}")
    if not missing:
        try:
            import nixl_ep  # type: ignore[import-untyped]  # noqa: F401
        except (ImportError, OSError) as error:
            missing.append(f"the package nixl_ep ({NIXL.command}: {error})")
    if missing:
        raise EngineError(f"all2all_backend nixl_ep needs {'; '.join(missing)}. Take all_to_all")


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a device the thread's present one, for a while."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def num_places(num_ranks: int) -> int:
    """For how many ranks buffers are made."""
    return num_ranks if num_ranks < WHOLE_NODE else -(-num_ranks // WHOLE_NODE) * WHOLE_NODE


def _make_buffer(ranks: RankGroup, device: torch.device, hidden: int, slots_per_rank: int) -> Any:
    """An unconnected buffer. Raises EngineError."""
    import nixl_ep

    most = MAX_SLOTS_OF_A_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    if slots_per_rank * ranks.size > most:
        raise EngineError(
            f"all2all_backend nixl_ep takes at most {most} slots of all ranks on this GPU, not "
            f"{slots_per_rank * ranks.size}: take fewer redundant experts, or all_to_all"
        )
    places = num_places(ranks.size)
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
        raise EngineError(f"nixl_ep cannot have its buffers: {error}. Take all2all_backend all_to_all") from error
    return buffer


class NixlLink:
    """Owns the buffers of one epoch's rank."""

    def __init__(self, buffer: Buffer, size: int, slots_per_rank: int, device: torch.device) -> None:
        """size: number of ranks, each with so many slots."""
        self.buffer = buffer
        self.num_slots = slots_per_rank * size
        self.slots_per_rank = slots_per_rank
        self._size = size
        self._device = device

    @classmethod
    def connect(cls, ranks: RankGroup, device: torch.device, hidden: int, slots_per_rank: int) -> "NixlLink":
        """Connects to all other ranks of the epoch, which do the same.

        Raises EngineError if this rank cannot have the buffers, GroupBroken if it cannot reach the others.
        """
        with on_device(device):
            buffer = _make_buffer(ranks, device, hidden, slots_per_rank)
            link = cls(buffer, ranks.size, slots_per_rank, device)
            try:
                ranks.meet()  # it waits for the others without a look at the epoch: whoever is gone by now is noticed
                buffer.connect_ranks([rank for rank in range(ranks.size) if rank != ranks.view.rank])
            except (RuntimeError, GroupBroken) as error:
                link.close()
                raise GroupBroken(f"nixl_ep did not connect the ranks: {error}") from error
        return link

    def takes(self, num_tokens: Sequence[int], slots_per_rank: int) -> bool:
        """See DirectLink."""
        return max(num_tokens) <= MAX_TOKENS and slots_per_rank <= self.slots_per_rank

    def dispatch(
        self, x: Tensor, replicas: Tensor, slots: LayerSlots, on_rows: Callable[[int], None]
    ) -> "NixlDispatch":
        """See DirectLink."""
        places = replicas // slots.per_rank * self.slots_per_rank + replicas % slots.per_rank
        return NixlDispatch(self, x, places, slots.here, on_rows)

    def on_device(self) -> AbstractContextManager[object]:
        """Makes the group's device the thread's present one, for a while."""
        return on_device(self._device)

    def check(self) -> None:
        """Raises GroupBroken if a rank did not answer."""
        mask = torch.zeros(num_places(self._size), dtype=torch.int32, device=self._device)
        self.buffer.query_mask_buffer(mask)
        if masked := mask[: self._size].nonzero().flatten().tolist():
            raise GroupBroken(f"ranks {masked} did not answer within {TIMEOUT_MS / 1000:g} s")

    def close(self) -> None:
        """Gives the buffers back, once no kernel is under way."""
        with self.on_device():
            self.buffer.destroy()


class NixlDispatch:
    """See Dispatch of `expert_parallel`."""

    def __init__(
        self, link: NixlLink, x: Tensor, places: Tensor, num_slots: int, on_rows: Callable[[int], None]
    ) -> None:
        """places: [num_tokens, num_chosen], each a rank's number times `link.slots_per_rank` plus a slot's.

        num_slots: of the layer here; the link may have more.
        """
        self._link = link
        self._places = places.contiguous()  # int64, as the library takes them
        self._num_slots = num_slots
        self._on_rows = on_rows
        self._sizes: list[int] = []
        with link.on_device():
            self._received, self._counts, self._handle, _, self._wait = link.buffer.low_latency_dispatch(
                x.contiguous(), self._places, MAX_TOKENS, link.num_slots, use_fp8=False, return_recv_hook=True
            )

    def arrive(self) -> ExpertRows:
        """See Dispatch."""
        with self._link.on_device():
            self._wait()
        counts = self._counts[: self._num_slots].tolist()
        self._on_rows(sum(counts))
        self._sizes = [-(-count // ROW_TILE) * ROW_TILE for count in counts]
        parts = [rows[:size] for rows, size in zip(self._received, self._sizes, strict=False)]
        rows = torch.cat(parts) if parts else self._received[0, :0]
        return ExpertRows(rows, self._sizes, self._places.new_empty(0))

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch. Raises GroupBroken."""
        results = torch.empty_like(self._received)
        for slot, part in enumerate(outputs.split_with_sizes(self._sizes) if self._sizes else ()):
            results[slot, : len(part)] = part
        with self._link.on_device():
            combined, _, _ = self._link.buffer.low_latency_combine(
                results, self._places, weights.float().contiguous(), self._handle
            )
            self._link.check()
        return combined
