"""A model divided among ranks: the first one leads, and the others follow it step by step.

1. The first rank has the requests, the scheduler and the sampler. It tells all others of each step's batch.
2. All compute it, each with its own part of the model and of the KV, which stands in the same blocks on every rank.
3. When a rank is gone no other can go on: every rank's step, or its wait for one, ends with GroupBroken, and with it
   the process. Whoever looks after the processes starts all of them again.
"""

import time
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError
from baton.engine.execution.batch import Batch
from baton.engine.execution.cores import running_on
from baton.engine.execution.device import computing_on
from baton.engine.execution.loaded_model import load, zeros
from baton.engine.models import Model
from baton.engine.parallel.tensor_parallel import TensorGroup


class Rank0Model:
    """The first rank's model: whatever it computes, all ranks do."""

    def __init__(self, model: Model, tensor: TensorGroup) -> None:
        """model: this rank's part."""
        self._model = model
        self._tensor = tensor

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """See Model. Raises GroupBroken."""
        self._tensor.tell(batch)
        return self._model.forward(batch, pool)

    def forward_idle(self) -> None:
        """See Model."""
        self._model.forward_idle()


class Follower:
    """Owns the part of a model, and of its KV, of a rank that computes what the first one says."""

    def __init__(
        self,
        config: EngineConfig,
        tensor: TensorGroup,
        allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor] = zeros,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Waits for all ranks and loads this one's part; as `Engine`, which the first rank makes of the same config."""
        tensor.form()
        if tensor.shard.rank == 0:
            raise EngineError("the first rank of a tensor-parallel group leads, and follows nobody")
        loaded = load(config, allocate_pool, on_progress, tensor=tensor)
        self.config = config
        self.layout = loaded.layout
        self.kv_parts = loaded.kv_parts
        self.pool = loaded.pool
        self._cores = loaded.cores
        self.fingerprint = loaded.fingerprint
        self._model = loaded.model
        self._tensor = tensor
        self._busy_since_s: float | None = None  # monotonic clock; None: it waits for a step

    @property
    def turn_s(self) -> float:
        """Seconds that the present step has taken so far; 0 between two; may be asked on any thread.

        Half of them while it waits for other ranks: where one hangs, that one is to be ended, and not all.
        """
        since_s = self._busy_since_s
        turn_s = 0.0 if since_s is None else time.monotonic() - since_s
        return turn_s / 2 if self._tensor.is_waiting else turn_s

    def follow(self) -> NoReturn:
        """Computes all steps. Raises GroupBroken when the first rank has ended, or another one is gone."""
        if self.config.num_threads is not None:
            torch.set_num_threads(self.config.num_threads)
        try:
            with running_on(self._cores), computing_on(self.pool.device):
                while True:
                    batch = self._tensor.listen()
                    self._busy_since_s = time.monotonic()
                    self._model.forward(batch, self.pool)
                    self._busy_since_s = None
        finally:
            self._busy_since_s = None
            self._tensor.close()
