"""Which weights stay in memory, and which are read for each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.errors import EngineError
from baton.engine.offload.config import OffloadConfig
from baton.engine.offload.layout import Unit, total_bytes

BUFFERED = 2  # layers that stream and are in memory at once: one computes, the next is read


@dataclass(frozen=True, slots=True)
class Residency:
    """Division of the memory for weights."""

    resident: tuple[Unit, ...]  # in memory for good
    streamed: Mapping[int, tuple[Unit, ...]]  # by layer: read when the layer before it computes
    expert_bytes: int  # for a cache of experts; 0: all experts are resident, or there are none

    @classmethod
    def of(cls, units: Sequence[Unit], other_bytes: int, num_chosen: int, config: OffloadConfig) -> "Residency":
        """Divide the memory: experts get the rest, unless the config has a number for them.

        other_bytes: of weights that cannot be offloaded; num_chosen: experts that a token needs. Raises EngineError
        with the number of bytes that would do.
        """
        experts = [unit for unit in units if unit.expert is not None]
        layers = _by_layer([unit for unit in units if unit.expert is None])
        sizes = {layer: total_bytes(each) for layer, each in layers.items()}
        if config.memory_bytes is None and config.expert_bytes is None:
            return cls(tuple(units), {}, 0)
        dense_bytes, all_expert_bytes = sum(sizes.values()), total_bytes(experts)
        least_expert_bytes = num_chosen * max((unit.num_bytes for unit in experts), default=0)
        least_dense_bytes = min(dense_bytes, BUFFERED * max(sizes.values(), default=0))
        limit = config.memory_bytes
        left = dense_bytes + all_expert_bytes if limit is None else limit - other_bytes
        wanted = left - dense_bytes if config.expert_bytes is None else config.expert_bytes
        if experts and config.expert_bytes is not None and wanted < least_expert_bytes:
            raise EngineError(
                f"expert_cache_bytes is {wanted}, but must be at least {least_expert_bytes}: the experts of a token"
            )
        expert_bytes = min(all_expert_bytes, max(wanted, least_expert_bytes))
        if left - expert_bytes < least_dense_bytes:
            raise EngineError(
                f"weights_memory_bytes is {limit}, but must be at least "
                f"{other_bytes + expert_bytes + least_dense_bytes}: {other_bytes} for embeddings, output layer and "
                f"norms, {expert_bytes} for experts, and {least_dense_bytes} for {BUFFERED} layers"
            )
        kept = spread(sizes, left - expert_bytes)
        resident = [unit for layer in kept for unit in layers[layer]]
        holds_all = expert_bytes == all_expert_bytes
        return cls(
            tuple(resident + experts if holds_all else resident),
            {layer: tuple(each) for layer, each in layers.items() if layer not in kept},
            0 if holds_all else expert_bytes,
        )


def spread(sizes: Mapping[int, int], num_bytes: int) -> frozenset[int]:
    """Return the layers that stay in memory, spread evenly, so that reads go on while they compute."""
    total = sum(sizes.values())
    if total <= num_bytes:
        return frozenset(sizes)
    left = num_bytes - BUFFERED * max(sizes.values())
    kept: set[int] = set()
    passed = kept_bytes = 0
    for layer, size in sizes.items():
        passed += size
        if kept_bytes + size <= left * passed / total:
            kept.add(layer)
            kept_bytes += size
    return frozenset(kept)


def _by_layer(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    layers: dict[int, list[Unit]] = {}
    for unit in units:
        layers.setdefault(unit.layer, []).append(unit)
    return layers
