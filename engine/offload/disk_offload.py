"""Weights offload on a CPU: layers and experts are read from a file of weights while the model computes."""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from baton.engine.checkpoint.placement import Placement
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.layers.weights.panel_weight import product_instructions
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.address_space import PAGE, AddressSpace
from baton.engine.offload.file_store import DEFAULT_DIRECTORY, FileStore
from baton.engine.offload.file_writer import FileContents, FileWriter
from baton.engine.offload.streamed_model import StreamedModel
from baton.engine.offload.weights_file import WeightsFile

log = logging.getLogger(__name__)

VERSION = 2  # increment when weights are laid out differently
SPARE_BYTES = 1 << 30  # of addresses, for what alignment takes

Load = Callable[[Placement], CausalLM]


class DiskOffload:
    """File of a checkpoint's weights as they are computed with: written at the first start, and read from then on."""

    def __init__(self, config: EngineConfig, model: ModelConfig, revision: Callable[[], str]) -> None:
        """revision: hash of the checkpoint's files, which raises InvalidCheckpoint if they have changed."""
        self._config = config
        self._model = model
        self._revision = revision
        directory = config.offload.directory
        self._store = FileStore(DEFAULT_DIRECTORY if directory is None else Path(directory))

    def load(self, load: Load) -> StreamedModel:
        """Load a model whose weights are in the file; `load` gets the placement of its layers' weights.

        Raises EngineError for a directory that cannot hold the file, and for too little memory.
        """
        name = self._name(self._revision())
        self._store.log_others(name)
        file = self._store.find(name)
        if file is None:
            with self._store.writing(name, self._num_bytes) as partial:
                file = self._store.find(name)  # another process may have written it
                if file is None:
                    return self._written(load, partial, name)
        with file.closed_on_failure():
            space = AddressSpace(max(file.layout.num_bytes, PAGE))
            return self._streamed(load(FileContents(file.layout, space)), file, space)

    def _written(self, load: Load, partial: Path, name: str) -> StreamedModel:
        space = AddressSpace(2 * self._num_bytes + SPARE_BYTES)
        log.info("weights offload: writing the weights to %s", partial.parent)
        writer = FileWriter(partial, space, self._num_bytes)
        try:
            model = load(writer)
            self._revision()  # what was written is of the files that the name stands for
            writer.finish()
            file = self._store.publish(partial, name)
        finally:
            writer.discard()
        with file.closed_on_failure():
            return self._streamed(model, file, space)

    def _streamed(self, model: CausalLM, file: WeightsFile, space: AddressSpace) -> StreamedModel:
        config = self._config
        outside = weights_bytes(Path(config.model), self._model, config.quantization, outside_of_layers=True)
        other_bytes = max(outside, self._num_bytes - file.layout.num_bytes)
        moe = self._model.moe
        num_chosen = moe.num_experts_per_token if moe is not None else 0
        return StreamedModel.of(model, file, space, config.offload, other_bytes, num_chosen)

    @property
    def _num_bytes(self) -> int:
        """Bytes of all weights, approximately."""
        return weights_bytes(Path(self._config.model), self._model, self._config.quantization)

    def _name(self, revision: str) -> str:
        """Return a name that is different for weights that differ in any byte."""
        shape = asdict(replace(self._model, max_model_len=0))
        parts = [VERSION, revision, shape, self._config.quantization, product_instructions()]
        described = json.dumps(parts, sort_keys=True, default=sorted)  # sets are unordered
        digest = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9._-]', '-', Path(self._config.model).resolve().name)[:64]}-{digest}"
