"""The base model's weights, as an adapter's loading needs them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.file_hashes import FileState
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.tensor_index import weight_files
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
    states: Mapping[Path, FileState]  # of the files when the model was loaded

    @classmethod
    def of(
        cls, directory: Path, quantization: StoredQuantization | None, prefixes: Prefixes, *, is_tied: bool
    ) -> "BaseCheckpoint":
        """Return the checkpoint of a model that is loaded now. Raises InvalidCheckpoint."""
        states = {path: FileState.of(path) for path in weight_files(directory)}
        return cls(directory, quantization, prefixes, is_tied, states)

    def open(self) -> "BaseWeights":
        """Return the weights, for all modules of an adapter: a checkpoint may have many thousands of tensors.

        Raises InvalidAdapter, also if files are no longer those of the loaded model.
        """
        try:
            self._check_unchanged()
            weights = Weights(
                self.directory,
                torch.float32,
                torch.device("cpu"),
                stored_quantization=self.quantization,
                prefixes=self.prefixes,
            )
        except (OSError, InvalidCheckpoint, UnsupportedModel) as error:
            raise InvalidAdapter(
                f"the adapter needs the model's weights in {self.directory}, which cannot be read: {error}"
            ) from error
        weights.finish(lambda _: True)  # reads outside of loading return no memory of the heap, which steps use
        return BaseWeights(self, weights)

    def _check_unchanged(self) -> None:
        for path, loaded in self.states.items():
            now = FileState.of(path)
            if (now.num_bytes, now.modified_ns) != (loaded.num_bytes, loaded.modified_ns):
                raise InvalidCheckpoint(f"{path} has changed since the model was loaded; restart to load it again")


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The model's weights while an adapter is loaded. Their files stay mapped until this object is dropped."""

    checkpoint: BaseCheckpoint
    weights: Weights

    def rows(self, module: str, shape: tuple[int, int], rows: slice) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of a module's weights in fp32, some at a time, with their places. Raises InvalidAdapter."""
        name = f"{EMBEDDING if module == HEAD and self.checkpoint.is_tied else module}.weight"
        start, stop, _ = rows.indices(shape[0])
        try:
            for first in range(start, stop, CHUNK_ROWS):
                place = slice(first, min(first + CHUNK_ROWS, stop))
                yield place, self.weights.take(name, *shape, part=(place,))
        except (OSError, InvalidCheckpoint, UnsupportedModel) as error:
            raise InvalidAdapter(
                f"the adapter needs the model's {name} in {self.checkpoint.directory}, which cannot be read: {error}"
            ) from error
