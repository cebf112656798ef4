"""Stream of layers: while one computes, the next ones are read."""

from collections.abc import Mapping, Sequence

from baton.engine.offload.layer_residency import LayerResidency
from baton.engine.offload.layout import Unit
from baton.engine.offload.residency import BUFFERED
from baton.engine.offload.unit_reads import UnitReader, UnitReads


class LayerStream:
    """Layers that take turns in memory; at most `BUFFERED` of them are there at once.

    A layer's memory is given back as soon as it has computed, and the read of the layer after the next begins.
    """

    def __init__(self, reader: UnitReader, layers: Mapping[int, Sequence[Unit]]) -> None:
        """layers: units of the layers that stream, in order."""
        self._reader = reader
        self._layers = layers
        self._order = tuple(layers)
        self._reads: dict[int, UnitReads] = {}  # of layers in memory, or on the way there

    def begin(self) -> None:
        """Begin to read the first layers."""
        self._read_from(0)

    def residency(self, layer: int) -> LayerResidency:
        """Return the context in which a layer computes."""
        return LayerResidency(self, layer)

    def enter(self, layer: int) -> None:
        """Wait until a layer is in memory. Raises EngineError."""
        if layer not in self._reads:  # a step ended early
            for other in tuple(self._reads):
                self._drop(other)
            self._read_from(self._order.index(layer))
        self._reads[layer].wait()

    def leave(self, layer: int) -> None:
        """Give a layer's memory back, and begin to read the next one that is not in memory yet."""
        self._drop(layer)
        self._read_from(self._order.index(layer) + 1)

    def _read_from(self, place: int) -> None:
        for after in range(BUFFERED):
            layer = self._order[(place + after) % len(self._order)]
            if layer not in self._reads:
                self._reads[layer] = self._reader.start(self._layers[layer])

    def _drop(self, layer: int) -> None:
        self._reads.pop(layer).wait()
        for unit in self._layers[layer]:
            self._reader.drop(unit)
