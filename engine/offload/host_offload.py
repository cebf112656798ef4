"""Weights offload on a GPU: layers' weights are in the machine's memory and copied to the GPU while it computes."""

import logging
import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from baton.engine.checkpoint.placement import WeightForm
from baton.engine.errors import EngineError
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.device_copies import DeviceCopies
from baton.engine.offload.device_stream import DeviceStream, HostLayer, HostTensor
from baton.engine.offload.residency import BUFFERED, spread

log = logging.getLogger(__name__)

MIN_BYTES = 1 << 16  # smaller tensors, such as scales, stay on the GPU
ALIGNMENT = 512  # torch's on a GPU; libraries choose other kernels for less aligned weights, with other roundings


class HostPlacement:
    """Placement that moves a layer's weights to host memory when the layer is complete.

    The tensors stay the same objects, which products refer to. Only their memory changes: none while a model loads,
    and then that of the GPU in which their layer computes.
    """

    def __init__(self) -> None:
        self.layers: list[HostLayer] = []
        self._tensors: list[Tensor] = []  # of the current layer

    def begin_layer(self, layer: int) -> None:
        """Begin a layer."""
        assert layer == len(self.layers), "layers are placed in order"

    def place(
        self, make: Callable[[], WeightForm], expert: int | None = None, names: tuple[str, ...] = ()
    ) -> WeightForm:
        """Note the large tensors of a weight; see Placement."""
        form = make()
        self._tensors += [each for each in _tensors(form) if each.nbytes >= MIN_BYTES and each.is_contiguous()]
        return form

    def end_layer(self) -> None:
        """Copy the layer's tensors to host memory, and free theirs."""
        sizes = [-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in self._tensors]
        *offsets, num_bytes = accumulate(sizes, initial=0)
        memory = _own_pages(num_bytes)
        found = []
        for tensor, offset in zip(self._tensors, offsets, strict=True):
            memory[offset : offset + tensor.nbytes].copy_(tensor.view(-1).view(torch.uint8))
            found.append(HostTensor(tensor, offset, tensor.stride()))
            found[-1].without_memory()
        self.layers.append(HostLayer(memory, found))
        self._tensors = []

    def stream(self, model: CausalLM, device: torch.device, copies: DeviceCopies, memory_bytes: int) -> DeviceStream:
        """Let the layers of the loaded model stream, except for those that fit into `memory_bytes` of the device.

        Raises EngineError if that is too little for two layers.
        """
        sizes = {index: len(layer.memory) for index, layer in enumerate(self.layers)}
        least = min(sum(sizes.values()), BUFFERED * max(sizes.values(), default=0))
        if memory_bytes < least:
            raise EngineError(
                f"weights_memory_bytes is {memory_bytes}, but must be at least {least}: {BUFFERED} layers"
            )
        kept = spread(sizes, memory_bytes)
        for index in kept:
            self.layers[index].within(self.layers[index].memory.to(device))
        streamed = {index: layer for index, layer in enumerate(self.layers) if index not in kept}
        self.layers = []
        stream = DeviceStream(streamed, device, copies)
        stream.counters.num_stored_bytes = sum(sizes[index] for index in streamed)
        model.layers = [
            layer if index in kept else replace(layer, residency=stream.residency(index))
            for index, layer in enumerate(model.layers)
        ]
        log.info(
            "weights offload: %d of %d layers, %.2f GB, are copied to %s in each step; CUDA graphs are off",
            *(len(streamed), len(sizes), sum(sizes[index] for index in streamed) / 1e9, device),
        )
        return stream


def _own_pages(num_bytes: int) -> Tensor:
    """Return memory [num_bytes] uint8 that shares no page with other memory, so that CUDA can lock it by itself."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _tensors(form: WeightForm) -> Iterator[Tensor]:
    yield from form.tensors.values()
    for part in form.parts:
        yield from _tensors(part)
