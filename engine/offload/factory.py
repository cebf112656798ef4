"""Loading of a model with or without weights offload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from baton.engine.checkpoint.placement import Placement
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.counters import OffloadCounters
from baton.engine.offload.device_copies import CudaCopies
from baton.engine.offload.disk_offload import DiskOffload
from baton.engine.offload.host_offload import HostPlacement
from baton.engine.offload.residency import BUFFERED

GPU_SHARE = 0.5  # of the GPU memory that a worker may use, by default


class WeightsSource(Protocol):
    """Reads weights for the steps of a model."""

    counters: OffloadCounters

    def close(self) -> None:
        """End its threads; the model cannot compute any more."""
        ...


class ResidentWeights:
    """All weights in the memory of the device."""

    def __init__(self) -> None:
        self.counters = OffloadCounters()

    def close(self) -> None:
        """Return: nothing is read."""


@dataclass(frozen=True, slots=True)
class OffloadedModel:
    """A loaded model, and the source of its weights."""

    model: CausalLM
    source: WeightsSource


def load_with_offload(
    config: EngineConfig,
    model: ModelConfig,
    revision: Callable[[], str],
    load: Callable[[Placement | None], CausalLM],
) -> OffloadedModel:
    """Load a model by `load`, with its weights where the config wants them.

    revision: hash of the checkpoint's files. Raises EngineError for memory, disks and directories that are too small or
    cannot be used.
    """
    if config.offload.kind == "disk":
        streamed = DiskOffload(config, model, revision).load(load)
        return OffloadedModel(streamed.model, streamed.reader)
    if config.offload.kind == "host":
        device, placement = torch.device(config.device), HostPlacement()
        with torch.inference_mode():
            loaded = load(placement)
            stream = placement.stream(loaded, device, CudaCopies(device, BUFFERED), _gpu_bytes(config, device))
        return OffloadedModel(loaded, stream)
    return OffloadedModel(load(None), ResidentWeights())


def _gpu_bytes(config: EngineConfig, device: torch.device) -> int:
    if config.offload.memory_bytes is not None:
        return config.offload.memory_bytes
    total_bytes = torch.cuda.mem_get_info(device)[1]
    return int(total_bytes * config.gpu_memory_utilization * GPU_SHARE)
