"""Context in which a layer computes: its weights are in the memory of the device."""

from types import TracebackType
from typing import Protocol


class Stream(Protocol):
    """Layers that take turns in memory."""

    def enter(self, layer: int) -> None:
        """Let a layer's weights be in memory, for what is computed next."""
        ...

    def leave(self, layer: int) -> None:
        """Release their memory, once what was computed is done."""
        ...


class LayerResidency:
    """Context of one layer of a stream."""

    def __init__(self, stream: Stream, layer: int) -> None:
        self._stream = stream
        self._layer = layer

    def __enter__(self) -> None:
        """Wait for the weights."""
        self._stream.enter(self._layer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give their memory back."""
        self._stream.leave(self._layer)
