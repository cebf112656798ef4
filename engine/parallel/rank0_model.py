"""A tensor-parallel model: rank 0 leads, and the other ranks follow it step by step.

1. Rank 0 has the requests, the scheduler, the sampler and the encoder of images. It broadcasts each step's batch, and
   the embeddings of its image tokens, to all others.
2. All ranks compute it, each with its shard of the model and of the KV, which has the same block ids on every rank.
   If the model has recurrent state and the step had drafts, rank 0 then broadcasts how many of them are right.
3. When a rank is lost, none can continue: on every rank the step, or the wait for one, ends with GroupBroken, and then
   the process ends. The supervisor of the processes restarts all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock
from typing import NoReturn

import torch
from torch import Tensor

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError
from baton.engine.execution.batch import Batch, PooledOutput
from baton.engine.execution.cores import running_on
from baton.engine.execution.device import computing_on
from baton.engine.execution.loaded_model import load, zeros
from baton.engine.kv.layout import torch_dtype
from baton.engine.lora.registry import AdapterRegistry
from baton.engine.models import Model
from baton.engine.parallel.tensor_parallel import TensorGroup


class Rank0Model:
    """Rank 0's model, which makes all other ranks compute the same batch."""

    def __init__(self, model: Model, tensor: TensorGroup) -> None:
        """Wrap this rank's shard of the model."""
        self._model = model
        self._tensor = tensor

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Broadcast the batch and return the logits. Raises GroupBroken."""
        self._broadcast(batch)
        return self._model.forward(batch, pool)

    def forward_pooled(self, batch: Batch, pool: Tensor) -> PooledOutput:
        """Broadcast the batch and return the logits and sums. The other ranks compute no sums. Raises GroupBroken."""
        self._broadcast(batch)
        return self._model.forward_pooled(batch, pool)

    def accept(self, counts: Sequence[int]) -> None:
        """Advance recurrent states on all ranks. Raises GroupBroken."""
        self._tensor.broadcast_counts(counts)
        self._model.accept(counts)

    def forward_idle(self) -> None:
        """Compute only this rank's experts, for the other ranks of a group."""
        self._model.forward_idle()

    def _broadcast(self, batch: Batch) -> None:
        self._tensor.broadcast(batch)
        if batch.image_vectors is not None:
            self._tensor.copy_from_rank0(batch.image_vectors)


class Follower:
    """A rank other than 0: its shard of the model and KV, on which it computes the batches of rank 0."""

    def __init__(
        self,
        config: EngineConfig,
        tensor: TensorGroup,
        allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor] = zeros,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Wait for all ranks and load this one's shard; rank 0 creates an `Engine` with the same config."""
        tensor.form()
        if tensor.shard.rank == 0:
            raise EngineError("rank 0 of a tensor-parallel group leads and cannot follow")
        loaded = load(config, allocate_pool, on_progress, tensor=tensor)
        self.config = config
        self.layout = loaded.layout
        self.kv_parts = loaded.kv_parts
        self.pool = loaded.pool
        self._cores = loaded.cores
        self.fingerprint, self.origin = loaded.fingerprint, loaded.origin
        self._model = loaded.model
        self._no_vectors = torch.empty(
            0, loaded.config.hidden_size, dtype=torch_dtype(loaded.config.dtype), device=self.pool.device
        )
        self._tensor = tensor
        self.adapters = AdapterRegistry(config.lora, loaded.adapted)  # here it only reads: batches have numbers
        self._unused: SimpleQueue[int] = SimpleQueue()  # numbers of adapters to drop between two steps
        self._step = Lock()  # held during a step
        self._busy_since_s: float | None = None  # monotonic clock; None while waiting for a step

    @property
    def turn_s(self) -> float:
        """Seconds that the current step has taken so far; 0 between steps; may be read from any thread.

        Halved while it waits for other ranks: if one hangs, the watchdog should end that one first, not all of them.
        """
        since_s = self._busy_since_s
        turn_s = 0.0 if since_s is None else time.monotonic() - since_s
        return turn_s / 2 if self._tensor.is_waiting else turn_s

    def drop_adapter(self, number: int) -> None:
        """Free an adapter's memory now, or at the end of the step in progress; may be called on any thread."""
        self._unused.put(number)
        self._drop_unused()

    def follow(self) -> NoReturn:
        """Compute all steps until GroupBroken is raised, when rank 0 has ended or another rank is lost."""
        if self.config.num_threads is not None:
            torch.set_num_threads(self.config.num_threads)
        try:
            with running_on(self._cores), computing_on(self.pool.device):
                while True:
                    batch = self._tensor.receive_broadcast()
                    self._busy_since_s = time.monotonic()
                    batch = self._with_images(batch)
                    with self._step:
                        self._model.forward(batch, self.pool)
                    if batch.states is not None and batch.states.drafted:
                        self._model.accept(self._tensor.receive_counts(len(batch.states.drafted)))
                    self._busy_since_s = None
                    self._drop_unused()
        finally:
            self._busy_since_s = None
            self._tensor.close()

    def _with_images(self, batch: Batch) -> Batch:
        """Receive the embeddings of a step's image tokens, if it has any."""
        if batch.images is None:
            return batch
        vectors = self._no_vectors.new_empty(len(batch.images.rows), self._no_vectors.shape[1])
        self._tensor.copy_from_rank0(vectors)
        return replace(batch, image_vectors=vectors)

    def _drop_unused(self) -> None:
        """Drop adapters unless a step is in progress, at whose end this is called again."""
        while not self._unused.empty() and self._step.acquire(blocking=False):
            try:
                while not self._unused.empty():
                    self.adapters.drop(self._unused.get())
            finally:
                self._step.release()
