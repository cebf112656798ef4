"""Stream of layers from host memory through two buffers of a device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.errors import EngineError
from baton.engine.offload.counters import OffloadCounters
from baton.engine.offload.device_copies import DeviceCopies
from baton.engine.offload.layer_residency import LayerResidency
from baton.engine.offload.residency import BUFFERED


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor that products refer to, whose memory comes and goes."""

    tensor: Tensor
    offset: int  # of its bytes in the layer's memory
    strides: tuple[int, ...]

    def within(self, memory: Tensor) -> None:
        """Let the tensor be that of its layer's bytes."""
        tensor, storage = self.tensor, memory.untyped_storage()
        tensor.set_(storage, (memory.storage_offset() + self.offset) // tensor.itemsize, tensor.shape, self.strides)

    def without_memory(self) -> None:
        """Free the tensor's memory; it keeps its shape."""
        one = torch.empty(1, dtype=self.tensor.dtype, device=self.tensor.device)
        self.tensor.set_(one.untyped_storage(), 0, self.tensor.shape, (0,) * self.tensor.dim())


@dataclass(frozen=True, slots=True)
class HostLayer:
    """A layer's weights in host memory."""

    memory: Tensor  # [num_bytes] uint8
    tensors: Sequence[HostTensor]

    def within(self, buffer: Tensor) -> None:
        """Let the layer's tensors be those in memory of the device that has its bytes, or will have them."""
        for each in self.tensors:
            each.within(buffer)


class DeviceStream:
    """Layers that take turns in two buffers: while one computes, the next is copied to the other.

    A layer always has the same buffer, so its tensors never move. CUDA events order copies and computation, so the
    host runs ahead of both.
    """

    def __init__(self, layers: Mapping[int, HostLayer], device: torch.device, copies: DeviceCopies) -> None:
        """layers: those that stream, in order."""
        self.counters = OffloadCounters()
        self._layers = layers
        self._copies = copies
        self._order = tuple(layers)
        self._buffer_of = {layer: place % BUFFERED for place, layer in enumerate(self._order)}
        self._contents: list[int | None] = [None] * BUFFERED
        size = max((len(layer.memory) for layer in layers.values()), default=0)
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BUFFERED)]
        self._pin()
        for index, layer in layers.items():
            layer.within(self._buffers[self._buffer_of[index]])
        for buffer in range(BUFFERED):
            copies.release(buffer)  # what was launched so far may still use the memory that a buffer was made of
        for index in self._order[:BUFFERED]:
            self._start(index)

    def _pin(self) -> None:
        """Lock the layers' pages: all of them, or none if there is an error."""
        try:
            for layer in self._layers.values():
                self._copies.pin(layer.memory)
        except EngineError:
            self._copies.close()
            raise

    def residency(self, layer: int) -> LayerResidency:
        """Return the context in which a layer computes."""
        return LayerResidency(self, layer)

    def enter(self, layer: int) -> None:
        """Let what is launched next wait for a layer's weights."""
        buffer = self._buffer_of[layer]
        if self._contents[buffer] != layer:  # a step ended early
            self._start(layer)
        self._copies.wait(buffer)

    def leave(self, layer: int) -> None:
        """Start to copy the next layer to the buffer, once what was launched is done."""
        buffer = self._buffer_of[layer]
        self._copies.release(buffer)
        place = self._order.index(layer)
        following = (*self._order[place + 1 :], *self._order[: place + 1])
        self._start(next(each for each in following if self._buffer_of[each] == buffer))

    def close(self) -> None:
        """End the copies, and unlock the host memory."""
        self._copies.close()

    def _start(self, layer: int) -> None:
        buffer, memory = self._buffer_of[layer], self._layers[layer].memory
        if self._contents[buffer] == layer:  # the only one of its buffer
            return
        self._contents[buffer] = layer
        self._copies.start(buffer, self._buffers[buffer][: len(memory)], memory)
        self.counters.num_read_bytes += len(memory)
