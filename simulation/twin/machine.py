"""The times of a replica of the twin, and those between it and the client."""

from dataclasses import dataclass, field, replace

from baton.simulation.engine.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A worker's spec and the delays around it, the same for every replica."""

    spec: WorkerSpec = field(default_factory=WorkerSpec)
    overhead_s: float = 0.0  # from the client to the worker and back, in equal halves
    request_s: float = 0.0  # part of overhead_s that the router spends on one request at a time
    handover_s: float = 0.0  # added by the call to a prefill worker, without its queue, its steps and the link
    join_s: float = 0.0  # added by a handover from the last block to the batch, without the link

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output: the spec's, if a pool has blocks for it."""
        return min(self.spec.max_model_len, (self.spec.num_blocks - 1) * self.spec.block_size)

    def with_block_size(self, block_size: int) -> "Machine":
        """Return the machine with the same memory in blocks of another size; larger blocks are faster to simulate."""
        spec = self.spec
        if block_size == spec.block_size:
            return self
        num_tokens = (spec.num_blocks - 1) * spec.block_size
        resized = replace(
            spec,
            block_size=block_size,
            num_blocks=max(1, num_tokens // block_size) + 1,  # one block is for padding
            block_bytes=max(1, round(spec.block_bytes / spec.block_size * block_size)),
        )
        return replace(self, spec=resized)
