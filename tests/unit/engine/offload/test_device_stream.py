"""Layers in host memory that take turns in two buffers, with serial copies in place of a GPU's."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from baton.engine.checkpoint.placement import WeightForm
from baton.engine.errors import EngineError
from baton.engine.offload.device_copies import SerialCopies
from baton.engine.offload.device_stream import DeviceStream
from baton.engine.offload.host_offload import MIN_BYTES, HostPlacement

CPU = torch.device("cpu")
ITEMS = MIN_BYTES // 4


class CheckedCopies(SerialCopies):
    """Copies that must not overwrite a buffer which is in use, and that are waited for."""

    def __init__(self) -> None:
        self.in_use: set[int] = set()

    def start(self, buffer: int, target: Tensor, source: Tensor) -> None:
        assert buffer not in self.in_use
        super().start(buffer, target, source)

    def wait(self, buffer: int) -> None:
        self.in_use.add(buffer)

    def release(self, buffer: int) -> None:
        self.in_use.discard(buffer)


def placed(sizes: Sequence[int]) -> tuple[HostPlacement, list[list[Tensor]], Tensor]:
    """Return layers of `sizes` large weights each, and a small one."""
    placement, layers = HostPlacement(), []
    small = torch.ones(3)
    for layer, count in enumerate(sizes):
        placement.begin_layer(layer)
        forms = [
            WeightForm(kind="plain", tensors={"weight": torch.full((4, ITEMS // 4), 10.0 * layer + place)})
            for place in range(count)
        ]
        joined = WeightForm(kind="joined", tensors={"scales": small}, parts=tuple(forms))
        assert placement.place(lambda joined=joined: joined) is joined
        layers.append([form.tensors["weight"] for form in forms])
        placement.end_layer()
    return placement, layers, small


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [1, 2, 1, 3, 1]], ids=["even", "odd"])
def test_each_layer_has_its_weights_while_it_computes(sizes: list[int]) -> None:
    placement, layers, small = placed(sizes)
    assert all(tensor.shape == (4, ITEMS // 4) for layer in layers for tensor in layer)
    stream = DeviceStream(dict(enumerate(placement.layers)), CPU, CheckedCopies())
    for step in (range(len(sizes)), range(2), range(len(sizes))):
        for layer in step:
            with stream.residency(layer):
                for place, tensor in enumerate(layers[layer]):
                    assert (tensor == 10 * layer + place).all()
                    assert tensor.is_contiguous()
    assert small.tolist() == [1, 1, 1]
    addresses = {tensor.data_ptr() for layer in layers for tensor in layer}
    assert len(addresses) <= 2 * max(sizes)
    assert stream.counters.num_read_bytes >= 2 * sum(sizes) * MIN_BYTES


class FewPages(SerialCopies):
    """Copies for which one layer can be locked."""

    def __init__(self) -> None:
        self.num_locked = 0

    def pin(self, memory: Tensor) -> None:
        if self.num_locked:
            raise EngineError("no more memory can be locked")
        self.num_locked += 1

    def close(self) -> None:
        self.num_locked = 0


def test_no_page_stays_locked_if_not_all_can_be() -> None:
    placement, _, _ = placed([1, 1])
    copies = FewPages()
    with pytest.raises(EngineError):
        DeviceStream(dict(enumerate(placement.layers)), CPU, copies)
    assert copies.num_locked == 0


def test_tensors_without_memory_take_none() -> None:
    _, layers, _ = placed([2, 2])
    assert all(tensor.untyped_storage().nbytes() == 4 for layer in layers for tensor in layer)
