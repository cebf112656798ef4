"""The base model's weights, as an adapter's loading needs them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.tensor_prefixes import Prefixes
from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import InvalidAdapter, InvalidCheckpoint, UnsupportedModel

CHUNK_ROWS = 1024  # read at once
HEAD, EMBEDDING = "lm_head", "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class BaseCheckpoint:
    """Files of the model. They are read again, since a loaded weight has another layout, and maybe fewer bits."""

    directory: Path
    quantization: StoredQuantization | None
    prefixes: Prefixes
    is_tied: bool  # the output layer has the embedding's weights

    def rows(self, module: str, shape: tuple[int, int], rows: slice) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of a module's weights in fp32, some at a time, with their places. Raises InvalidAdapter."""
        name = f"{EMBEDDING if module == HEAD and self.is_tied else module}.weight"
        start, stop, _ = rows.indices(shape[0])
        try:
            weights = self._open()
            for first in range(start, stop, CHUNK_ROWS):
                place = slice(first, min(first + CHUNK_ROWS, stop))
                yield place, weights.take(name, *shape, part=(place,))
        except (OSError, InvalidCheckpoint, UnsupportedModel) as error:
            raise InvalidAdapter(
                f"the adapter needs the model's {name} in {self.directory}, which cannot be read: {error}"
            ) from error

    def _open(self) -> Weights:
        device = torch.device("cpu")
        return Weights(
            self.directory, torch.float32, device, stored_quantization=self.quantization, prefixes=self.prefixes
        )
